//! The formats that are kept: golden files load for ever, and what is written is read again.

use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;

use patchgym::protocol::episode::Call;
use patchgym::protocol::episode::End;
use patchgym::protocol::episode::Ending;
use patchgym::protocol::episode::Observation;
use patchgym::protocol::episode::Outcome;
use patchgym::protocol::message::FinishReason;
use patchgym::protocol::message::Message;
use patchgym::protocol::message::Role;
use patchgym::protocol::message::ToolCall;
use patchgym::protocol::record::Bytes;
use patchgym::protocol::record::Event;
use patchgym::protocol::record::Header;
use patchgym::protocol::record::Limits;
use patchgym::protocol::record::PatchReceipt;
use patchgym::protocol::record::Record;
use patchgym::protocol::record::Response;
use patchgym::protocol::verdict;
use patchgym::trajectory::Recorder;
use patchgym::trajectory::TrajectoryError;
use patchgym::trajectory::page::Color;
use patchgym::trajectory::page::Detail;
use patchgym::trajectory::reader;
use patchgym::trajectory::reader::Log;
use patchgym::trajectory::reader::Torn;
use patchgym::trajectory::schema;
use patchgym::trajectory::show;
use patchgym::trajectory::show::ShowOptions;
use patchgym::trajectory::writer::Writer;
use proptest::prelude::*;

/// The file of every event type in format 0.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("trajectories/golden/format-0.jsonl")
}

/// Reads `text` as a log.
fn read(text: &[u8]) -> Result<Log, TrajectoryError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    fs_err::write(&path, text).unwrap();
    reader::read(path)
}

/// The events of a log without their times.
fn events(log: Log) -> Vec<Event> {
    log.records.into_iter().map(|record| record.event).collect()
}

#[test]
fn the_golden_file_is_written_again_byte_for_byte() {
    let log = reader::read(golden()).unwrap();
    let mut written = String::new();
    for record in &log.records {
        written.push_str(&serde_json::to_string(record).unwrap());
        written.push('\n');
    }
    assert_eq!(written, fs_err::read_to_string(golden()).unwrap());
}

#[test]
fn the_golden_file_has_every_event_type_of_the_schema() {
    let schema: serde_json::Value = serde_json::from_str(&schema::text()).unwrap();
    let known: BTreeSet<&str> = schema["$defs"]["Event"]["oneOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["properties"]["type"]["const"].as_str().unwrap())
        .collect();
    let golden = fs_err::read_to_string(golden()).unwrap();
    let records: Vec<serde_json::Value> =
        golden.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let held: BTreeSet<&str> =
        records.iter().map(|record| record["event"]["type"].as_str().unwrap()).collect();
    assert_eq!(held, known);
}

#[test]
fn the_example_of_the_documentation_is_a_log() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("trajectories/README.md");
    let page = fs_err::read_to_string(page).unwrap();
    let (_, example) = page.split_once("```jsonl\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let log = read(example.as_bytes()).unwrap();
    assert_eq!(log.records.len(), example.lines().count());
    assert_eq!(log.torn, None);
    for event in log.records.iter().map(|record| serde_json::to_value(&record.event).unwrap()) {
        assert!(
            page.contains(&format!("`{}`", event["type"].as_str().unwrap())),
            "{event} is not explained"
        );
    }
}

#[test]
fn the_golden_file_reads_as_its_story() {
    let log = reader::read(golden()).unwrap();
    assert_eq!(log.header().unwrap().instance_id, "demo__kettle-1");
    assert_eq!(log.end().unwrap().reason, End::ModelError);
    assert_eq!(log.verdict().unwrap().outcome, verdict::Outcome::Unresolved);

    let turns = log.turns();
    assert_eq!(turns.iter().map(|turn| turn.turn).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(turns.iter().map(|turn| turn.calls.len()).collect::<Vec<_>>(), [1, 0, 2, 0]);
    assert_eq!(turns.iter().map(|turn| turn.observations.len()).collect::<Vec<_>>(), [1, 0, 2, 0]);
    let changed: Vec<Option<bool>> =
        turns.iter().map(|turn| turn.patch.map(|patch| patch.changed)).collect();
    assert_eq!(changed, [Some(false), None, Some(true), Some(false)]);
    assert_eq!(turns[0].message.unwrap().tool_calls[0].id, "call_a");
    assert_eq!(turns[0].outputs[0].tail.to_vec().unwrap(), b"\x89KTL\xff\n");
    assert_eq!(turns[1].format_error, Some("truncated"));
    assert_eq!(turns[3].failure.unwrap().class, "rate_limit");
    assert_eq!(turns[3].warnings.len(), 1);

    let sent = log.request_messages(2).unwrap();
    let roles: Vec<Role> = sent.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool]);
    assert!(matches!(log.request_messages(5), Err(TrajectoryError::NoTurn { turn: 5, turns: 4 })));

    assert_eq!(log.patch_at(2).unwrap().unwrap().bytes, b"");
    assert_eq!(log.patch_at(3).unwrap().unwrap().turn, 3);
    let patch = log.final_patch().unwrap().unwrap();
    assert_eq!(patch.turn, 4);
    assert_eq!(patch.receipt.files, ["kettle.py"]);
    assert!(patch.bytes.starts_with(b"diff --git a/kettle.py"));
}

#[test]
fn a_patch_that_is_taken_again_in_its_turn_still_counts_as_changed() {
    let mut records = reader::read(golden()).unwrap().records;
    let taken = |record: &Record| matches!(record.event, Event::Patch { turn: 3, .. });
    let at = records.iter().position(taken).unwrap();
    records.insert(at, records[at].clone());
    let log = Log { records, torn: None };
    assert!(log.turns()[2].patch.unwrap().changed);
}

#[test]
fn a_patch_whose_bytes_are_not_the_hashed_ones_is_refused() {
    let text = fs_err::read_to_string(golden()).unwrap();
    let altered =
        read(text.replace("metres / 300\\n\"}", "metres / 200\\n\"}").as_bytes()).unwrap();
    assert!(matches!(altered.final_patch(), Err(TrajectoryError::DamagedPatch { turn: 4, .. })));
    let mut records = reader::read(golden()).unwrap().records;
    for record in &mut records {
        if let Event::Patch { content, .. } = &mut record.event {
            *content = None;
        }
    }
    let lost = Log { records, torn: None };
    assert!(matches!(lost.final_patch(), Err(TrajectoryError::NoPatchContent { turn: 4, .. })));
}

#[test]
fn a_log_that_was_cut_off_at_any_byte_gives_every_whole_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let bytes = fs_err::read(golden()).unwrap();
    let whole = read(&bytes).unwrap();
    fs_err::write(&path, &bytes).unwrap();
    let file = fs_err::OpenOptions::new().write(true).open(&path).unwrap();
    for length in (0..=bytes.len()).rev() {
        file.set_len(length as u64).unwrap();
        let log =
            reader::read(&path).unwrap_or_else(|error| panic!("cut at byte {length}: {error}"));
        let lines = bytes[..length].iter().filter(|byte| **byte == b'\n').count();
        let start = bytes[..length].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        // A record that only lacks its line end is whole.
        let records = if length > start && bytes[length] == b'\n' { lines + 1 } else { lines };
        assert_eq!(log.records, whole.records[..records], "cut at byte {length}");
        let torn = (length > start && records == lines).then(|| Torn {
            line: lines as u64 + 1,
            offset: start as u64,
            bytes: (length - start) as u64,
        });
        assert_eq!(log.torn, torn, "cut at byte {length}");
    }
}

#[test]
fn a_log_that_was_cut_off_at_any_byte_can_be_added_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let golden = fs_err::read(golden()).unwrap();
    let bytes = golden.split_inclusive(|byte| *byte == b'\n').take(4).collect::<Vec<_>>().concat();
    let header = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let added = Event::Warning { text: "added".to_owned() };
    for length in 0..=bytes.len() {
        fs_err::write(&path, &bytes[..length]).unwrap();
        let before = reader::read(&path).unwrap();
        let writer = Writer::append_to(&path);
        if length < header {
            assert!(matches!(writer, Err(TrajectoryError::NoHeader { .. })));
            assert_eq!(fs_err::read(&path).unwrap(), bytes[..length]);
            continue;
        }
        writer.unwrap().record(added.clone()).unwrap();
        let after = reader::read(&path).unwrap();
        assert_eq!(after.torn, None, "cut at byte {length}");
        let expected: Vec<Event> = events(before).into_iter().chain([added.clone()]).collect();
        assert_eq!(events(after), expected, "cut at byte {length}");
    }
}

#[test]
fn other_formats_and_other_files_are_refused_with_the_reason() {
    let text = fs_err::read_to_string(golden()).unwrap();
    let later = text.replacen("\"format\":0", "\"format\":1,\"colour\":\"blue\"", 1);
    let error = read(later.as_bytes()).unwrap_err();
    assert!(matches!(error, TrajectoryError::UnknownFormat { found: 1, known: 0, .. }));
    assert!(
        error.to_string().ends_with("its format is 1, this version of patchgym reads 0"),
        "{error}"
    );

    for other in [
        "{\n  \"trajectory\": []\n}\n",
        "{\"model_patch\":\"\"}\n",
        "not JSON\n",
        "\n",
        "\"\"",
        "[1]",
    ] {
        assert!(matches!(read(other.as_bytes()), Err(TrajectoryError::NoHeader { .. })), "{other}");
    }
    let headless = text.split_once('\n').unwrap().1;
    assert!(matches!(read(headless.as_bytes()), Err(TrajectoryError::NoHeader { .. })));
}

#[test]
fn a_bad_line_in_the_middle_is_an_error_with_its_number() {
    let text = fs_err::read_to_string(golden()).unwrap();
    for bad in ["", "{}", "{\"time\":1.0,\"event\":{\"type\":\"nap\"}}", "{\"time\":1.0,\"ev"] {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.insert(4, bad);
        let error = read((lines.join("\n") + "\n").as_bytes()).unwrap_err();
        assert!(matches!(error, TrajectoryError::BadLine { line: 5, .. }), "{bad}: {error}");
    }
}

#[test]
fn the_golden_file_is_shown_as_before() {
    let log = reader::read(golden()).unwrap();
    let mut shown = show::lines(&log, &ShowOptions::default()).unwrap().join("\n");
    shown.push('\n');
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/snapshots/show-golden.txt");
    if std::env::var_os("PATCHGYM_UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        fs_err::write(&path, &shown).unwrap();
    }
    let expected = fs_err::read_to_string(&path).unwrap();
    assert!(shown == expected, "PATCHGYM_UPDATE_SNAPSHOTS=1 accepts this:\n{shown}");
}

#[test]
fn colours_add_nothing_to_the_words() {
    let log = reader::read(golden()).unwrap();
    let plain = show::lines(&log, &ShowOptions::default()).unwrap();
    let coloured =
        show::lines(&log, &ShowOptions { color: Color::On, ..ShowOptions::default() }).unwrap();
    assert_ne!(coloured, plain);
    assert_eq!(patchgym::text::plain(&coloured.join("\n")), plain.join("\n"));
}

#[test]
fn one_turn_is_shown_alone_and_in_full() {
    let log = reader::read(golden()).unwrap();
    let options = ShowOptions { turn: Some(1), detail: Detail::Full, ..ShowOptions::default() };
    let lines = show::lines(&log, &options).unwrap();
    assert!((1..15).all(|line| lines.contains(&format!("    line {line}"))), "{lines:#?}");
    assert!(
        !lines.iter().any(|line| line.contains("left out") || line.starts_with("turn 2")),
        "{lines:#?}"
    );
    let absent = ShowOptions { turn: Some(9), ..ShowOptions::default() };
    assert!(matches!(
        show::lines(&log, &absent),
        Err(TrajectoryError::NoTurn { turn: 9, turns: 4 })
    ));
}

#[test]
fn turns_are_json_objects_for_programs() {
    let log = reader::read(golden()).unwrap();
    let turns = serde_json::to_value(show::turns(&log, None).unwrap()).unwrap();
    assert_eq!(turns.as_array().unwrap().len(), 4);
    assert_eq!(turns[0]["calls"][0]["tool"], "run");
    assert_eq!(turns[0]["observations"][0]["outcome"]["ending"]["code"], 1);
    assert_eq!(turns[2]["patch"]["changed"], true);
    assert_eq!(turns[3]["failure"]["class"], "rate_limit");
}

/// Bytes of a synthetic log of `turns` turns, and bytes of the messages in it.
fn synthetic(turns: u64) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let mut writer = Writer::create(&path).unwrap();
    let mut ids = Vec::new();
    let mut size = 0;
    let mut say = |writer: &mut Writer, message: Message| -> u64 {
        let arguments: usize = message.tool_calls.iter().map(|call| call.arguments.len()).sum();
        size += (message.content.len() + arguments) as u64;
        let id = ids.len() as u64;
        ids.push(id);
        writer.record(Event::Message { id, message }).unwrap();
        id
    };
    say(&mut writer, Message::text(Role::System, "word ".repeat(400)));
    for turn in 1..=turns {
        let messages = vec![[0, turn * 2 - 2]];
        let parameters = serde_json::json!({"model": "m", "temperature": 0.0, "max_tokens": 4096});
        writer
            .record(Event::Request { turn, messages, parameters, sha256: "0".repeat(64) })
            .unwrap();
        let arguments =
            serde_json::json!({"command": format!("grep -n \"turn {turn}\" *.py\n").repeat(10)});
        let call = ToolCall {
            id: format!("call_{turn}"),
            name: "run".to_owned(),
            arguments: arguments.to_string(),
        };
        let content = "I look for the place where it goes wrong. ".repeat(10);
        let said =
            Message { tool_calls: vec![call.clone()], ..Message::text(Role::Assistant, content) };
        let body =
            serde_json::json!({"id": "x", "choices": [{"index": 0, "message": said}]}).to_string();
        let message = say(&mut writer, said);
        let response = Response {
            turn,
            message,
            raw: Bytes::Text(body),
            finish_reason: FinishReason::ToolCalls,
            usage: None,
            cost: None,
            seconds: 1.0,
            retries: 0,
            prompt_token_ids: None,
            completion_token_ids: None,
            logprobs: None,
        };
        writer.record(Event::Response(Box::new(response))).unwrap();
        let serde_json::Value::Object(arguments) = arguments else { unreachable!() };
        let calls = vec![Call { id: call.id.clone(), tool: call.name.clone(), arguments }];
        writer.record(Event::Action { turn, calls }).unwrap();
        let text = format!("{turn}: def \"function\"(self):\n").repeat(200);
        let observation = Observation {
            call_id: call.id.clone(),
            tool: call.name,
            text: text.clone(),
            outcome: Outcome::Command {
                ending: Ending::Exited { code: 0 },
                bytes: 5,
                shell_restarted: false,
            },
            seconds: 0.1,
        };
        writer.record(Event::Observation { turn, observation }).unwrap();
        say(&mut writer, Message::tool(call.id, text));
        let receipt =
            PatchReceipt { files: vec!["src/file.py".to_owned()], ..PatchReceipt::default() };
        writer
            .record(Event::Patch { turn, sha256: "0".repeat(64), content: None, receipt })
            .unwrap();
    }
    (fs_err::metadata(&path).unwrap().len(), size)
}

#[test]
fn a_log_grows_with_its_messages_and_not_with_its_requests() {
    let (log, messages) = synthetic(100);
    assert!(log < 3 * messages, "{log} bytes for {messages} bytes of messages");
    let (twice, _) = synthetic(200);
    assert!(twice * 10 < log * 22, "{log} bytes for 100 turns, {twice} bytes for 200");
}

/// JSON as models emit it, with any text in any place.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        prop::num::f64::NORMAL.prop_map(serde_json::Value::from),
        any::<String>().prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::vec((any::<String>(), inner), 0..4)
                .prop_map(|entries| serde_json::Value::Object(entries.into_iter().collect())),
        ]
    })
}

/// Events with odd contents.
fn event() -> impl Strategy<Value = Event> {
    let bytes =
        || prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Bytes::from_slice(&bytes));
    let message = (any::<String>(), any::<Option<String>>(), any::<String>()).prop_map(
        |(content, reasoning, arguments)| Message {
            reasoning,
            tool_calls: vec![ToolCall { id: content.clone(), name: String::new(), arguments }],
            ..Message::text(Role::Assistant, content)
        },
    );
    prop_oneof![
        (any::<u64>(), message).prop_map(|(id, message)| Event::Message { id, message }),
        (any::<u64>(), prop::collection::vec(any::<[u64; 2]>(), 0..4), json(), any::<String>())
            .prop_map(|(turn, messages, parameters, sha256)| Event::Request {
                turn,
                messages,
                parameters,
                sha256
            }),
        (any::<String>(), any::<String>(), json()).prop_map(|(id, tool, value)| {
            let arguments = [(tool.clone(), value)].into_iter().collect();
            Event::Action { turn: 1, calls: vec![Call { id, tool, arguments }] }
        }),
        (any::<String>(), bytes(), bytes(), any::<u64>()).prop_map(
            |(call_id, head, tail, total)| {
                Event::Output { turn: 1, call_id, head, tail, total }
            }
        ),
        (any::<String>(), any::<String>(), any::<i32>(), prop::num::f64::POSITIVE).prop_map(
            |(call_id, text, code, seconds)| {
                let outcome = Outcome::Command {
                    ending: Ending::Exited { code },
                    bytes: 0,
                    shell_restarted: true,
                };
                let observation =
                    Observation { call_id, tool: String::new(), text, outcome, seconds };
                Event::Observation { turn: 1, observation }
            }
        ),
        (bytes(), prop::collection::vec(prop::num::f64::NORMAL, 0..4), any::<Option<u32>>())
            .prop_map(|(raw, logprobs, id)| {
                Event::Response(Box::new(Response {
                    turn: 1,
                    message: 0,
                    raw,
                    finish_reason: FinishReason::Stop,
                    usage: None,
                    cost: logprobs.first().copied(),
                    seconds: 0.1,
                    retries: 0,
                    prompt_token_ids: id.map(|id| vec![id]),
                    completion_token_ids: None,
                    logprobs: Some(logprobs),
                }))
            }),
        (any::<String>(), prop::collection::vec(any::<String>(), 0..3), bytes()).prop_map(
            |(sha256, files, content)| Event::Patch {
                turn: 0,
                sha256,
                content: Some(content),
                receipt: PatchReceipt { files, ..PatchReceipt::default() },
            }
        ),
        any::<String>().prop_map(|text| Event::Warning { text }),
    ]
}

/// A header, for logs of which nothing else matters.
fn header(problem_statement: String) -> Event {
    Event::Header(Box::new(Header {
        format: 0,
        patchgym: "0.1.0".to_owned(),
        instance_id: "demo__kettle-1".to_owned(),
        attempt: 1,
        repo: String::new(),
        base_commit: String::new(),
        problem_statement,
        agent: String::new(),
        model: String::new(),
        uses_gold: false,
        dialect: String::new(),
        prompts: Default::default(),
        tools: Vec::new(),
        limits: Limits::default(),
        seed: None,
        policy_version: None,
        training_step: None,
    }))
}

proptest! {
    #[test]
    fn bytes_come_back_as_they_were(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let json = serde_json::to_string(&Bytes::from_slice(&bytes)).unwrap();
        prop_assert_eq!(serde_json::from_str::<Bytes>(&json).unwrap().to_vec().unwrap(), bytes);
    }

    #[test]
    fn text_stays_text(text in any::<String>()) {
        prop_assert_eq!(Bytes::from_slice(text.as_bytes()), Bytes::Text(text));
    }

    #[test]
    fn what_is_recorded_is_read(issue in any::<String>(), odd in prop::collection::vec(event(), 0..8)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut recorded = vec![header(issue)];
        recorded.extend(odd);
        let mut writer = Writer::create(&path).unwrap();
        for event in &recorded {
            writer.record(event.clone()).unwrap();
        }
        writer.finish().unwrap();
        let log = reader::read(&path).unwrap();
        for record in &log.records {
            let line = serde_json::to_string(record).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Record>(&line).unwrap(), record);
        }
        prop_assert_eq!(events(log), recorded);
    }
}
