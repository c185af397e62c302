//! Answers kept by what was asked.

use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use async_trait::async_trait;
use serde::Deserialize;
use serde::Serialize;

use crate::digest::sha256;
use crate::model::Model;
use crate::model::ModelError;
use crate::protocol::message::Completion;
use crate::protocol::message::Exchange;
use crate::protocol::message::FinishReason;
use crate::protocol::message::Message;
use crate::protocol::message::Request;
use crate::protocol::message::Usage;
use crate::protocol::record::Bytes;

/// The file that names the model of a store.
const MODEL_FILE: &str = "model.json";

/// A folder of answers of one model: `model.json` with its name, and one file per request, named by the SHA-256 of the
/// model, messages, tools and sampling. The first answer to a request stays.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    model: String,
}

/// A completion as a store keeps it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    message: Message,
    finish_reason: FinishReason,
    usage: Option<Usage>,
    cost: Option<f64>,
    prompt_token_ids: Option<Vec<u32>>,
    completion_token_ids: Option<Vec<u32>>,
    logprobs: Option<Vec<f64>>,
    parameters: serde_json::Value,
    request_sha256: String,
    response: Bytes,
    retries: u32,
}

impl Store {
    /// Opens a store that answers were recorded to.
    ///
    /// # Errors
    /// [`ModelError::Setup`] when the folder is not a store.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join(MODEL_FILE);
        let text =
            fs_err::read_to_string(&path).map_err(|error| ModelError::Setup(error.to_string()))?;
        let model = serde_json::from_str(&text)
            .map_err(|error| ModelError::Setup(format!("{}: {error}", path.display())))?;
        Ok(Self { folder: folder.to_owned(), model })
    }

    /// Opens a store for the answers of `model`, or makes one.
    ///
    /// # Errors
    /// [`ModelError::Setup`] when the folder cannot be written or holds the answers of another model.
    pub fn create(folder: &Path, model: &str) -> Result<Self, ModelError> {
        let store = Self { folder: folder.to_owned(), model: model.to_owned() };
        fs_err::create_dir_all(folder).map_err(|error| ModelError::Setup(error.to_string()))?;
        store.write(MODEL_FILE, serde_json::to_string(model).unwrap_or_default().as_bytes())?;
        let found = Self::open(folder)?.model;
        if found != model {
            return Err(ModelError::Setup(format!(
                "{} holds the answers of {found}, not of {model}",
                folder.display()
            )));
        }
        Ok(store)
    }

    /// The name of the file of a request.
    fn file(&self, request: &Request) -> Result<String, ModelError> {
        let input = serde_json::to_vec(&(
            &self.model,
            &request.messages,
            &request.tools,
            &request.sampling,
        ))
        .map_err(|error| ModelError::BadRequest(error.to_string()))?;
        Ok(format!("{}.json", sha256(&input)))
    }

    fn add(&self, request: &Request, completion: Completion) -> Result<(), ModelError> {
        let stored = Stored {
            message: completion.message,
            finish_reason: completion.finish_reason,
            usage: completion.usage,
            cost: completion.cost,
            prompt_token_ids: completion.prompt_token_ids,
            completion_token_ids: completion.completion_token_ids,
            logprobs: completion.logprobs,
            parameters: completion.exchange.parameters,
            request_sha256: completion.exchange.request_sha256,
            response: Bytes::from_slice(&completion.exchange.response),
            retries: completion.exchange.retries,
        };
        let bytes = serde_json::to_vec(&stored)
            .map_err(|error| ModelError::BadAnswer(error.to_string()))?;
        self.write(&self.file(request)?, &bytes)
    }

    /// Writes a file whole or not at all, unless it is there.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ModelError> {
        let wrong = |error: std::io::Error| {
            ModelError::Setup(format!("cannot record to {}: {error}", self.folder.display()))
        };
        let mut file = tempfile::NamedTempFile::new_in(&self.folder).map_err(wrong)?;
        file.write_all(bytes).map_err(wrong)?;
        match file.persist_noclobber(self.folder.join(name)) {
            Ok(_) => Ok(()),
            Err(failure) if failure.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            Err(failure) => Err(wrong(failure.error)),
        }
    }
}

#[async_trait]
impl Model for Store {
    fn name(&self) -> &str {
        &self.model
    }

    async fn complete(&self, request: &Request) -> Result<Completion, ModelError> {
        let name = self.file(request)?;
        let path = self.folder.join(&name);
        let bytes = match fs_err::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ModelError::NotRecorded(name.trim_end_matches(".json").to_owned()));
            }
            Err(error) => return Err(ModelError::Setup(error.to_string())),
        };
        let wrong = |error: String| ModelError::Setup(format!("{}: {error}", path.display()));
        let stored: Stored =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let response = stored.response.to_vec().map_err(|error| wrong(error.to_string()))?;
        Ok(Completion {
            message: stored.message,
            finish_reason: stored.finish_reason,
            usage: stored.usage,
            cost: stored.cost,
            prompt_token_ids: stored.prompt_token_ids,
            completion_token_ids: stored.completion_token_ids,
            logprobs: stored.logprobs,
            exchange: Exchange {
                parameters: stored.parameters,
                request_sha256: stored.request_sha256,
                response,
                retries: stored.retries,
            },
        })
    }
}

/// A model whose answers are kept in a store.
pub struct Recording {
    model: Box<dyn Model>,
    store: Store,
}

impl Recording {
    /// Keeps the answers of `model` in `folder`.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn new(model: Box<dyn Model>, folder: &Path) -> Result<Self, ModelError> {
        let store = Store::create(folder, model.name())?;
        Ok(Self { model, store })
    }
}

#[async_trait]
impl Model for Recording {
    fn name(&self) -> &str {
        self.model.name()
    }

    async fn complete(&self, request: &Request) -> Result<Completion, ModelError> {
        let completion = self.model.complete(request).await?;
        self.store.add(request, completion.clone())?;
        Ok(completion)
    }
}

#[cfg(test)]
mod tests {
    use crate::model::null::Null;
    use crate::protocol::message::Role;
    use crate::protocol::message::Sampling;

    use super::*;

    #[tokio::test]
    async fn what_was_recorded_is_answered_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut request = Request {
            messages: vec![Message::text(Role::User, "hello")],
            tools: vec![],
            sampling: Sampling {
                seed: Some(1),
                temperature: Some(0.1 + 0.2),
                ..Sampling::default()
            },
        };
        let recording = Recording::new(Box::new(Null), folder.path()).unwrap();
        let answer = recording.complete(&request).await.unwrap();
        assert_eq!(recording.complete(&request).await.unwrap(), answer);
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.name(), "null");
        assert_eq!(store.complete(&request).await.unwrap(), answer);
        request.sampling.seed = Some(2);
        assert!(matches!(store.complete(&request).await, Err(ModelError::NotRecorded(_))));
        assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_store_belongs_to_one_model() {
        let folder = tempfile::tempdir().unwrap();
        Store::create(folder.path(), "a").unwrap();
        Store::create(folder.path(), "a").unwrap();
        let error = Store::create(folder.path(), "b").unwrap_err().to_string();
        assert!(error.contains("holds the answers of a, not of b"), "{error}");
        assert!(Store::open(&folder.path().join("none")).is_err());
    }
}
