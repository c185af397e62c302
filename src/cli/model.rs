//! Makes the model that the user named.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::batch::cast::Cast;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::config::Config;
use crate::data::Data;
use crate::model::Model;
use crate::model::body::Reasoning;
use crate::model::connection::Deadlines;
use crate::model::null::Null;
use crate::model::openai::OpenAi;
use crate::model::openai::Options;
use crate::model::price::Prices;
use crate::model::probe;
use crate::model::probe::Finding;
use crate::model::recorded::Recorded;
use crate::model::retry::Retry;
use crate::model::script::Script;
use crate::model::secret::Secret;
use crate::model::spec::Spec;
use crate::model::spec::parse_spec;
use crate::model::store::Recording;
use crate::model::store::Store;

/// The word for the recordings of the bundled tasks, and the one for those that fail.
pub(super) const DEMONSTRATIONS: &str = "recorded:demo";
const FAILING: &str = "recorded:demo.fail";

/// Which model, and how it is reached.
#[derive(Args, Debug, Clone)]
pub(super) struct ModelArguments {
    /// A model of the server, or `script:FILE`, `recorded:FILE`, `gold`, `null`
    #[arg(short = 'm', long, value_name = "MODEL", default_value = DEMONSTRATIONS)]
    pub(super) model: String,
    /// Address of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1
    #[arg(long, value_name = "URL")]
    pub(super) base_url: Option<String>,
    /// Environment variable, or name in `.env`, that holds the API key
    #[arg(long, value_name = "NAME")]
    pub(super) api_key_env: Option<String>,
    /// Sampling temperature
    #[arg(long, value_name = "NUMBER")]
    pub(super) temperature: Option<f64>,
    /// Most tokens of one reply
    #[arg(long, value_name = "COUNT")]
    pub(super) max_tokens: Option<u64>,
    /// Seed of the sampler
    #[arg(long, value_name = "NUMBER")]
    pub(super) seed: Option<u64>,
    /// Store every answer below this folder, to be played again with `recorded:DIR`
    #[arg(long, value_name = "DIR")]
    pub(super) record_to: Option<PathBuf>,
    /// A YAML file of prices: model to dollars per million prompt, cached and completion tokens
    #[arg(long, value_name = "FILE")]
    pub(super) prices: Option<PathBuf>,
}

/// A model that is ready to play.
pub(super) struct Player {
    pub(super) cast: Cast,
    /// Its name in records and predictions.
    pub(super) name: String,
    pub(super) uses_gold: bool,
    pub(super) prices: Prices,
}

impl ModelArguments {
    /// The layers that these arguments put over the configuration.
    pub(super) fn layers(&self) -> Vec<String> {
        let number = |key: &str, value: Option<String>| value.map(|value| format!("{key}={value}"));
        [
            number("server.base_url", self.base_url.as_ref().map(|url| format!("{url:?}"))),
            number("server.api_key_env", self.api_key_env.as_ref().map(|name| format!("{name:?}"))),
            number("sampling.temperature", self.temperature.map(|value| value.to_string())),
            number("sampling.max_tokens", self.max_tokens.map(|value| value.to_string())),
            number("sampling.seed", self.seed.map(|value| value.to_string())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Makes the model. A server is asked first what it can do, so that a run does not begin in vain.
    pub(super) async fn player(
        &self,
        config: &Config,
        data: &Arc<Data>,
    ) -> Result<Player, Failure> {
        let prices = match &self.prices {
            Some(path) => Prices::read(path)?,
            None => Prices::default(),
        };
        let demonstrations = |suffix| Cast::Demonstrations { data: Arc::clone(data), suffix };
        let (cast, name) = match (self.model.as_str(), parse_spec(&self.model)) {
            (DEMONSTRATIONS, _) => (demonstrations(""), "recorded".to_owned()),
            (FAILING, _) => (demonstrations(".fail"), "recorded".to_owned()),
            (_, Spec::Gold) => (Cast::Gold, "gold".to_owned()),
            (_, Spec::Null) => self.one(Null)?,
            (_, Spec::Script(path)) => self.one(Script::read(&path)?)?,
            (_, Spec::Recorded(path)) if path.is_dir() => self.one(Store::open(&path)?)?,
            (_, Spec::Recorded(path)) => self.one(Recorded::read(&path)?)?,
            (_, Spec::Server(model)) => {
                let server = server(&model, config)?;
                check(&server, config).await?;
                self.one(server)?
            }
        };
        Ok(Player { uses_gold: matches!(cast, Cast::Gold), cast, name, prices })
    }

    fn one(&self, model: impl Model + 'static) -> Result<(Cast, String), Failure> {
        let name = model.name().to_owned();
        let model: Arc<dyn Model> = match &self.record_to {
            Some(folder) => Arc::new(Recording::new(Box::new(model), folder)?),
            None => Arc::new(model),
        };
        Ok((Cast::One(model), name))
    }
}

/// The client of the configured server.
pub(super) fn server(model: &str, config: &Config) -> Result<OpenAi, Failure> {
    let settings = &config.server;
    if settings.base_url.is_empty() {
        return Err(Failure::usage(format!(
            "`{model}` is a model of a server, and no server is given"
        ))
        .hint("add `--base-url URL`, or use script:FILE, recorded:FILE, gold or null"));
    }
    let mut options = Options::new(settings.base_url.parse()?, model);
    options.key = Secret::find(&settings.api_key_env)?;
    options.headers = settings
        .extra_headers
        .iter()
        .map(|(name, value)| (name.clone(), Secret::new(value)))
        .collect();
    options.extra = settings.extra_body.clone();
    options.reasoning = match settings.reasoning.as_str() {
        "drop" => Reasoning::Drop,
        "last" => Reasoning::Last,
        _ => Reasoning::Keep,
    };
    options.deadlines = Deadlines {
        connect: Duration::from_secs(settings.connect_timeout),
        first_byte: Duration::from_secs(settings.first_byte_timeout),
        idle: Duration::from_secs(settings.idle_timeout),
        total: Duration::from_secs(settings.total_timeout),
    };
    options.retry = Retry { count: settings.retries, ..Retry::default() };
    Ok(OpenAi::new(options)?)
}

/// Refuses to begin when the server cannot be reached, or cannot do what the agent needs.
async fn check(server: &OpenAi, config: &Config) -> Result<(), Failure> {
    let found = probe::probe(server).await;
    let hint = found.hints.first().cloned();
    let refuse = |message: String| {
        let failure = Failure::machine(message);
        match hint.clone() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    };
    for (what, finding) in [("reached", &found.reachable), ("asked for a reply", &found.completion)]
    {
        if let Finding::No(reason) = finding {
            return Err(refuse(format!("the model server cannot be {what}: {reason}")));
        }
    }
    if let (Finding::No(reason), "navigator") = (&found.tools, config.agent.as_str()) {
        return Err(refuse(format!("the model server takes no tool calls: {reason}")));
    }
    for hint in &found.hints {
        output::note(&format!("note: {hint}"));
    }
    Ok(())
}

/// Prints what a server can do.
pub(super) async fn report(model: &str, config: &Config) -> Result<bool, Failure> {
    let server = server(model, config)?;
    let found = probe::probe(&server).await;
    let mut rows = Vec::new();
    for (name, finding) in found.findings() {
        let (word, detail) = match finding {
            Finding::Yes(detail) => ("yes", detail),
            Finding::No(detail) => ("no", detail),
            Finding::Unknown(detail) => ("unknown", detail),
        };
        rows.push(vec![name.to_owned(), word.to_owned(), detail.clone()]);
    }
    let context =
        found.context.map_or_else(|| "unknown".to_owned(), |tokens| format!("{tokens} tokens"));
    rows.push(vec!["context".into(), context, String::new()]);
    output::data(&output::table(&rows, &[]));
    for hint in &found.hints {
        output::note(&format!("\nhint: {hint}"));
    }
    Ok(matches!(found.reachable, Finding::Yes(_)))
}

/// A path as it is shown: relative to the current folder where that is shorter.
pub(super) fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).display().to_string()
}
