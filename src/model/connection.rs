//! HTTP to one model server, with a deadline on every wait.

use std::error::Error;
use std::time::Duration;
use std::time::SystemTime;

use reqwest::Client;
use reqwest::RequestBuilder;
use reqwest::Url;
use reqwest::header::CONTENT_TYPE;
use reqwest::header::HeaderMap;
use reqwest::header::HeaderName;
use reqwest::header::HeaderValue;
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use tokio::time::timeout;

use crate::model::ModelError;
use crate::model::address::Address;
use crate::model::retry::retry_after;
use crate::model::secret::Secret;

/// Most bytes of an answer.
const BODY_LIMIT: usize = 64 << 20;

/// Longest waits of one request. An answer comes at once when all of it is generated, so a slow local server needs a long
/// wait for the first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Until the connection stands.
    pub connect: Duration,
    /// From then to the first byte of the answer.
    pub first_byte: Duration,
    /// Between two pieces of the answer.
    pub idle: Duration,
    /// From sending to the last byte.
    pub total: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(900),
            idle: Duration::from_secs(120),
            total: Duration::from_secs(1200),
        }
    }
}

/// A way to one server.
pub(crate) struct Connection {
    client: Client,
    address: Address,
    headers: HeaderMap,
    secrets: Vec<Secret>,
    deadlines: Deadlines,
}

/// An answer of any status.
pub(crate) struct Reply {
    /// The HTTP status.
    pub(crate) status: u16,
    /// How long the server asks to wait.
    pub(crate) retry_after: Option<Duration>,
    /// The body.
    pub(crate) body: Vec<u8>,
}

impl Connection {
    /// Prepares the way; nothing is sent yet.
    pub(crate) fn new(
        address: Address,
        key: Option<&Secret>,
        extra: &[(String, Secret)],
        deadlines: Deadlines,
    ) -> Result<Self, ModelError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let bearer =
            key.map(|key| ("authorization", Secret::new(&format!("Bearer {}", key.expose()))));
        for (name, value) in bearer
            .iter()
            .map(|(name, value)| (*name, value))
            .chain(extra.iter().map(|(n, v)| (n.as_str(), v)))
        {
            let setup = || {
                ModelError::Setup(format!("the header {name} holds characters that cannot be sent"))
            };
            let header = HeaderName::try_from(name).map_err(|_| setup())?;
            let mut value = HeaderValue::try_from(value.expose()).map_err(|_| setup())?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        let mut client = Client::builder()
            .user_agent(concat!("patchgym/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(deadlines.connect)
            // Headers with keys would follow a redirect to another host.
            .redirect(Policy::none())
            // Python servers close an idle connection after five seconds, sometimes just when it is used again.
            .pool_idle_timeout(Duration::from_secs(4))
            .tcp_keepalive(Duration::from_secs(30));
        if address.is_loopback() {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| ModelError::Setup(words(error)))?;
        let secrets = address
            .secrets()
            .into_iter()
            .chain(key.cloned())
            .chain(extra.iter().map(|(_, value)| value.clone()));
        let secrets = secrets.collect();
        Ok(Self { client, address, headers, secrets, deadlines })
    }

    /// The server's address.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// `text` without any credential that was sent.
    pub(crate) fn scrub(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text))
    }

    /// Sends a body to chat completions.
    pub(crate) async fn post(&self, body: Vec<u8>) -> Result<Reply, ModelError> {
        self.exchange(self.client.post(self.address.endpoint(&["chat", "completions"])).body(body))
            .await
    }

    /// Reads a page.
    pub(crate) async fn get(&self, url: Url) -> Result<Reply, ModelError> {
        self.exchange(self.client.get(url)).await
    }

    async fn exchange(&self, request: RequestBuilder) -> Result<Reply, ModelError> {
        let total = self.deadlines.total;
        match timeout(total, Box::pin(self.unbounded(request.headers(self.headers.clone())))).await
        {
            Ok(reply) => reply,
            Err(_) => Err(self.late("no whole answer", total)),
        }
    }

    async fn unbounded(&self, request: RequestBuilder) -> Result<Reply, ModelError> {
        let first_byte = self.deadlines.connect.saturating_add(self.deadlines.first_byte);
        let mut response = timeout(first_byte, request.send())
            .await
            .map_err(|_| self.late("no first byte", self.deadlines.first_byte))?
            .map_err(|error| self.failed(error))?;
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| retry_after(text, SystemTime::now()));
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(piece) = timeout(self.deadlines.idle, response.chunk())
            .await
            .map_err(|_| self.late("no next byte", self.deadlines.idle))?
            .map_err(|error| self.failed(error))?
        {
            if body.len() + piece.len() > BODY_LIMIT {
                return Err(ModelError::BadAnswer(format!("it is longer than {BODY_LIMIT} bytes")));
            }
            body.extend_from_slice(&piece);
        }
        Ok(Reply { status, retry_after, body })
    }

    fn late(&self, what: &str, limit: Duration) -> ModelError {
        ModelError::Unreachable(format!(
            "{what} from {} within {} s",
            self.address,
            limit.as_secs_f64()
        ))
    }

    fn failed(&self, error: reqwest::Error) -> ModelError {
        let early = error.is_connect();
        let text = self.scrub(&format!("{}: {}", self.address, words(error)));
        if early { ModelError::Unreachable(text) } else { ModelError::Server(text) }
    }
}

/// What an error says, down to its last cause, without the address, which may hold credentials.
fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words.push_str(": ");
        words.push_str(&cause.to_string());
        source = cause.source();
    }
    words
}
