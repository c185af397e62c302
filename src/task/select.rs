//! Which instances of a set are worked on, and in what order.

use std::collections::HashSet;

use rand_mt::Mt;
use regex::Regex;

use crate::task::Instance;
use crate::task::TaskError;
use crate::text;

/// The seed of SWE-agent's and mini-swe-agent's shuffle.
const SEED: u32 = 42;

/// A choice of instances. The default is all of them in the order they have.
///
/// Applied in the order of the fields below, so that a choice made with SWE-agent names the same instances here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only these ids; none means every id.
    pub ids: Option<Vec<String>>,
    /// Sort by id, then shuffle as Python's `random` does with seed 42.
    pub shuffle: bool,
    /// Only ids at whose beginning this regular expression matches, as Python's `re.match`.
    pub filter: Option<String>,
    /// A Python slice: `stop`, `start:stop` or `start:stop:step`.
    pub slice: Option<String>,
}

/// Chooses instances.
///
/// Fails on an id that no instance has, on a filter that is not a regular expression and on a slice that is none.
pub fn select(
    mut instances: Vec<Instance>,
    selection: &Selection,
) -> Result<Vec<Instance>, TaskError> {
    if let Some(ids) = &selection.ids {
        let known: HashSet<&str> =
            instances.iter().map(|instance| instance.task.id.as_str()).collect();
        if let Some(id) = ids.iter().find(|id| !known.contains(id.as_str())) {
            let nearest = text::nearest(id, known).map(ToOwned::to_owned);
            return Err(TaskError::UnknownId { id: id.clone(), nearest });
        }
        let wanted: HashSet<&String> = ids.iter().collect();
        instances.retain(|instance| wanted.contains(&instance.task.id));
    }
    if selection.shuffle {
        instances.sort_by(|a, b| a.task.id.cmp(&b.task.id));
        shuffle(&mut instances);
    }
    if let Some(filter) = &selection.filter {
        let regex = Regex::new(filter).map_err(|error| filter_error(filter, &error))?;
        // The leftmost match begins at 0 whenever any match does.
        instances.retain(|instance| {
            regex.find(&instance.task.id).is_some_and(|found| found.start() == 0)
        });
    }
    match &selection.slice {
        None => Ok(instances),
        Some(spec) => slice(instances, spec)
            .map_err(|problem| TaskError::Slice { slice: spec.clone(), problem }),
    }
}

/// The last line of the parser's message says what is wrong; the others draw where.
fn filter_error(filter: &str, error: &regex::Error) -> TaskError {
    let message = error.to_string();
    let last = message.lines().last().unwrap_or_default();
    TaskError::Filter {
        filter: filter.to_owned(),
        problem: last.trim_start_matches("error: ").to_owned(),
    }
}

/// CPython's `random.seed(42); random.shuffle(items)`.
fn shuffle<T>(items: &mut [T]) {
    let mut generator = Mt::new_with_key([SEED]);
    for last in (1..items.len()).rev() {
        items.swap(last, below(&mut generator, last + 1));
    }
}

/// CPython's `_randbelow_with_getrandbits`: the top bits of a draw, drawn again until they are below `limit`.
fn below(generator: &mut Mt, limit: usize) -> usize {
    let bits = usize::BITS - limit.leading_zeros();
    loop {
        let draw = (generator.next_u32() >> 32_u32.saturating_sub(bits)) as usize;
        if draw < limit {
            return draw;
        }
    }
}

/// Python's `items[spec]`.
fn slice<T>(items: Vec<T>, spec: &str) -> Result<Vec<T>, &'static str> {
    let mut numbers = Vec::new();
    for part in spec.split(':').map(str::trim) {
        numbers.push(match part {
            "" => None,
            number => Some(
                number
                    .parse::<i64>()
                    .map_err(|_| "expected whole numbers as in `start:stop:step`")?,
            ),
        });
    }
    let (start, stop, step) = match numbers[..] {
        [stop] => (None, stop, None),
        [start, stop] => (start, stop, None),
        [start, stop, step] => (start, stop, step),
        _ => return Err("more than three parts"),
    };
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err("the step is zero");
    }
    let length = i64::try_from(items.len()).map_err(|_| "too many instances")?;
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |bound: i64| {
        (if bound < 0 { bound.saturating_add(length) } else { bound }).clamp(lowest, highest)
    };
    let (first, end) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let mut at = start.map_or(first, bound);
    let end = stop.map_or(end, bound);
    let mut items: Vec<Option<T>> = items.into_iter().map(Some).collect();
    let mut chosen = Vec::new();
    while if step > 0 { at < end } else { at > end } {
        chosen.extend(
            usize::try_from(at).ok().and_then(|at| items.get_mut(at)).and_then(Option::take),
        );
        at = at.saturating_add(step);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use super::*;
    use crate::task::swebench;

    fn instances(ids: &[&str]) -> Vec<Instance> {
        ids.iter()
            .map(|id| {
                let row = json!({"instance_id": id, "repo": "d/r", "base_commit": "0", "problem_statement": "x",
                    "FAIL_TO_PASS": ["t"]});
                swebench::instance(row.as_object().unwrap()).unwrap()
            })
            .collect()
    }

    fn chosen(ids: &[&str], selection: &Selection) -> Result<Vec<String>, String> {
        let chosen = select(instances(ids), selection).map_err(|error| error.to_string())?;
        Ok(chosen.into_iter().map(|instance| instance.task.id).collect())
    }

    /// What python3 prints; none without python3.
    fn python(script: &str) -> Option<String> {
        let done = Command::new("python3").args(["-c", script]).output().ok()?;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(String::from_utf8(done.stdout).unwrap())
    }

    #[test]
    fn the_shuffle_is_pythons() {
        let mut pinned: Vec<u32> = (0..17).collect();
        shuffle(&mut pinned);
        assert_eq!(pinned, PINNED);
        let script = "import random\nfor n in (0, 1, 2, 3, 64, 65, 500, 2294):\n l = list(range(n))\n random.seed(42)\n \
            random.shuffle(l)\n print(l)";
        let Some(printed) = python(script) else {
            println!("skipped in part: no python3");
            return;
        };
        for (line, length) in printed.lines().zip([0, 1, 2, 3, 64, 65, 500, 2294]) {
            let mut items: Vec<u32> = (0..length).collect();
            shuffle(&mut items);
            assert_eq!(format!("{items:?}"), line);
        }
    }

    #[test]
    fn slices_are_pythons() {
        let of_five = |spec| slice(vec![0, 1, 2, 3, 4], spec);
        assert_eq!(of_five("2"), Ok(vec![0, 1]));
        assert_eq!(of_five("::-2"), Ok(vec![4, 2, 0]));
        assert_eq!(of_five("::0"), Err("the step is zero"));
        assert_eq!(of_five("1:2:3:4"), Err("more than three parts"));
        assert_eq!(of_five("a:"), Err("expected whole numbers as in `start:stop:step`"));
        assert_eq!(of_five("-9223372036854775808::9223372036854775807"), Ok(vec![0]));
        let Some(printed) = python(
            "b = ['', -7, -5, -1, 0, 2, 4, 5, 9]\nfor n in (0, 1, 5):\n for a in b:\n  for z in b:\n   for s in ['', -3, -1, 1, 2]:\n    \
             print(n, f'{a}:{z}:{s}', eval(f'list(range(n))[{a}:{z}:{s}]'), sep='|')",
        ) else {
            println!("skipped in part: no python3");
            return;
        };
        assert_eq!(printed.lines().count(), 3 * 9 * 9 * 5);
        for line in printed.lines() {
            let [length, spec, expected] = line.split('|').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let items: Vec<u32> = (0..length.parse().unwrap()).collect();
            assert_eq!(format!("{:?}", slice(items, spec).unwrap()), expected, "{line}");
        }
    }

    #[test]
    fn a_filter_matches_at_the_beginning_and_no_further_than_it_says() {
        let ids = ["a-b", "b-a", "ab"];
        let filtered = |filter: &str| {
            chosen(&ids, &Selection { filter: Some(filter.to_owned()), ..Selection::default() })
        };
        assert_eq!(filtered("a").unwrap(), ["a-b", "ab"]);
        assert_eq!(filtered("b|x").unwrap(), ["b-a"]);
        assert_eq!(filtered("a.$").unwrap(), ["ab"]);
        assert_eq!(filtered("").unwrap(), ids);
        assert_eq!(filtered("a(").unwrap_err(), "filter `a(`: unclosed group");
        assert_eq!(
            filtered("(?!a)").unwrap_err(),
            "filter `(?!a)`: look-around, including look-ahead and look-behind, is not supported"
        );
    }

    #[test]
    fn shuffle_comes_before_filter_and_filter_before_slice() {
        let names: Vec<String> =
            (0..17).rev().map(|number| format!("{}-{number:02}", ["x", "y"][number % 2])).collect();
        let ids: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        let expected: Vec<&str> = PINNED
            .iter()
            .map(|at| sorted[*at as usize])
            .filter(|id| id.starts_with('y'))
            .skip(1)
            .take(3)
            .collect();
        let selection = Selection {
            ids: None,
            shuffle: true,
            filter: Some("y".to_owned()),
            slice: Some("1:4".to_owned()),
        };
        assert_eq!(chosen(&ids, &selection).unwrap(), expected);
    }

    #[test]
    fn ids_choose_and_unknown_ones_are_refused() {
        let by_id = |ids: &[&str]| {
            let ids = Some(ids.iter().map(|id| (*id).to_owned()).collect());
            chosen(&["demo__a-1", "demo__a-2"], &Selection { ids, ..Selection::default() })
        };
        assert_eq!(
            by_id(&["demo__a-2", "demo__a-1", "demo__a-2"]).unwrap(),
            ["demo__a-1", "demo__a-2"]
        );
        assert_eq!(by_id(&[]).unwrap(), Vec::<String>::new());
        assert_eq!(
            by_id(&["demo_a-2"]).unwrap_err(),
            "unknown instance id `demo_a-2`, the nearest known is `demo__a-2`"
        );
        assert_eq!(
            by_id(&["django__django-1"]).unwrap_err(),
            "unknown instance id `django__django-1`"
        );
        let slice = Selection { slice: Some("1:x".to_owned()), ..Selection::default() };
        assert_eq!(
            chosen(&["a"], &slice).unwrap_err(),
            "slice `1:x`: expected whole numbers as in `start:stop:step`"
        );
    }

    /// `random.seed(42); random.shuffle(list(range(17)))` of CPython 3.11.
    const PINNED: [u32; 17] = [7, 10, 5, 6, 15, 14, 13, 9, 8, 1, 2, 12, 16, 4, 11, 0, 3];
}
