//! What tokens cost, as the user says.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::model::ModelError;
use crate::protocol::message::Usage;

/// Dollars per million tokens of one model.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Prompt tokens that were not cached.
    pub prompt: f64,
    /// Prompt tokens from the server's cache; the price of the others when absent.
    #[serde(default)]
    pub cached: Option<f64>,
    /// Generated tokens, reasoning included.
    pub completion: f64,
}

/// A price table: model name to price.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Prices(BTreeMap<String, Price>);

impl Prices {
    /// Reads a YAML file of `model: {prompt, cached, completion}`.
    ///
    /// # Errors
    /// [`ModelError::Setup`] with the file's path and the place in it.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let text =
            fs_err::read_to_string(path).map_err(|error| ModelError::Setup(error.to_string()))?;
        let prices: Self = serde_saphyr::from_str(&text).map_err(|error| {
            ModelError::Setup(format!("price table {}: {error}", path.display()))
        })?;
        for (model, price) in &prices.0 {
            let wrong = |dollars: &f64| !dollars.is_finite() || *dollars < 0.0;
            if [price.prompt, price.cached.unwrap_or(0.0), price.completion].iter().any(wrong) {
                return Err(ModelError::Setup(format!(
                    "price table {}: a price of {model} is not a number of dollars",
                    path.display()
                )));
            }
        }
        Ok(prices)
    }

    /// Dollars for `usage` of `model`, or `None` when the table does not know the model.
    pub fn cost(&self, model: &str, usage: &Usage) -> Option<f64> {
        let price = self.0.get(model)?;
        let cached = usage.cached_tokens.min(usage.prompt_tokens);
        let dollars = (usage.prompt_tokens - cached) as f64 * price.prompt
            + cached as f64 * price.cached.unwrap_or(price.prompt)
            + usage.completion_tokens as f64 * price.completion;
        Some(dollars / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Result<Prices, ModelError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prices.yaml");
        fs_err::write(&path, text).unwrap();
        Prices::read(&path)
    }

    #[test]
    fn cached_tokens_have_their_own_price() {
        let prices = table(
            "a: {prompt: 2, cached: 0.5, completion: 10}\nb/c:1:\n  prompt: 1\n  completion: 1\n",
        )
        .unwrap();
        let usage = Usage {
            prompt_tokens: 1000,
            cached_tokens: 600,
            completion_tokens: 100,
            reasoning_tokens: 50,
        };
        assert_eq!(prices.cost("a", &usage), Some((400.0 * 2.0 + 600.0 * 0.5 + 1000.0) / 1e6));
        assert_eq!(prices.cost("b/c:1", &usage), Some(1100.0 / 1e6));
        assert_eq!(prices.cost("unknown", &usage), None);
    }

    #[test]
    fn a_wrong_table_is_refused_with_its_place() {
        let error = table("a: {prompt: 2, completion: 10}\nb: {promt: 1, completion: 1}\n")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("prices.yaml") && error.contains("promt") && error.contains("line 2"),
            "{error}"
        );
        assert!(table("a: {prompt: -2, completion: 10}\n").is_err());
    }
}
