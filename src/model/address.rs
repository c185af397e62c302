//! Where a model server's API begins.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;

use crate::model::ModelError;
use crate::model::secret::Secret;

/// The base of an OpenAI-compatible API, such as `http://127.0.0.1:8000/v1`. User name, password and query are sent to
/// the server but never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Address(Url);

impl FromStr for Address {
    type Err = ModelError;

    /// Reads an address with or without scheme, final slash and `/v1`; the full address of chat completions is fine too.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        let text = text.trim();
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let wrong = |why: &str| ModelError::Setup(format!("the server's address {why}"));
        let mut url =
            Url::parse(&full).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("begins with neither http:// nor https://"));
        }
        url.set_fragment(None);
        let path =
            url.path().trim_end_matches('/').trim_end_matches("/chat/completions").to_owned();
        url.set_path(if path.is_empty() { "/v1" } else { &path });
        Ok(Self(url))
    }
}

impl Address {
    /// The address of an endpoint of the API, such as `["chat", "completions"]`.
    pub(crate) fn endpoint(&self, segments: &[&str]) -> Url {
        let mut url = self.0.clone();
        url.set_path(&format!("{}/{}", self.0.path(), segments.join("/")));
        url
    }

    /// The address of `segment` beside `/v1`, where servers keep endpoints of their own.
    pub(crate) fn beside(&self, segment: &str) -> Url {
        let mut url = self.0.clone();
        url.set_path(&format!("{}/{segment}", self.0.path().trim_end_matches("/v1")));
        url
    }

    /// The server is on this machine, where no proxy is wanted.
    pub(crate) fn is_loopback(&self) -> bool {
        match self.0.host_str() {
            Some("localhost") => true,
            Some(host) => host
                .trim_matches(['[', ']'])
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback()),
            None => false,
        }
    }

    /// The parts that no output may show.
    pub(crate) fn secrets(&self) -> Vec<Secret> {
        self.0
            .query_pairs()
            .map(|(_, value)| Secret::new(&value))
            .chain(self.0.password().map(Secret::new))
            .collect()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.0.scheme(), self.0.host_str().unwrap_or_default())?;
        if let Some(port) = self.0.port() {
            write!(formatter, ":{port}")?;
        }
        formatter.write_str(self.0.path())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> String {
        text.parse::<Address>().unwrap().endpoint(&["chat", "completions"]).to_string()
    }

    #[test]
    fn every_spelling_leads_to_the_endpoint() {
        let want = "http://127.0.0.1:8000/v1/chat/completions";
        for text in [
            "http://127.0.0.1:8000",
            "127.0.0.1:8000/",
            "http://127.0.0.1:8000/v1",
            "127.0.0.1:8000/v1/",
            want,
        ] {
            assert_eq!(endpoint(text), want, "{text}");
        }
        assert_eq!(
            endpoint("https://host/openai/deployments/m?api-version=2024-10-21"),
            "https://host/openai/deployments/m/chat/completions?api-version=2024-10-21"
        );
        assert_eq!(
            "localhost:1/v1".parse::<Address>().unwrap().beside("props").as_str(),
            "http://localhost:1/props"
        );
        assert!("ftp://host".parse::<Address>().is_err());
        assert!("http://".parse::<Address>().is_err());
    }

    #[test]
    fn user_and_query_are_sent_and_not_shown() {
        let address: Address =
            "https://me:canary-password@host:9/v1?key=canary-query#f".parse().unwrap();
        assert_eq!(format!("{address} {address:?}"), "https://host:9/v1 https://host:9/v1");
        assert_eq!(
            address.secrets(),
            [Secret::new("canary-query"), Secret::new("canary-password")]
        );
        assert!(address.endpoint(&["models"]).as_str().contains("key=canary-query"));
    }

    #[test]
    fn loopback_is_told_from_other_hosts() {
        for (text, want) in
            [("localhost:1", true), ("127.0.0.9", true), ("[::1]:8", true), ("10.0.0.1", false)]
        {
            assert_eq!(text.parse::<Address>().unwrap().is_loopback(), want, "{text}");
        }
    }
}
