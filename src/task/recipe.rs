//! How the Python environment of a real repository is made on this machine: recipes as data, chosen by repository and
//! version.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::data::Data;
use crate::data::DataError;

/// The file that holds the recipes.
pub const FILE: &str = "envs/python/recipes.yaml";
/// Files of a repository that say how it is installed; an environment depends on them whatever its recipe says.
const SETUP_FILES: [&str; 3] = ["pyproject.toml", "setup.cfg", "setup.py"];

/// The recipes of a data folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recipes {
    recipes: Vec<Recipe>,
}

/// How the environment of some versions of a repository is made.
///
/// Commands run in the repository, in bash, with the environment's programs first in `PATH` and with `TASK_VERSION` set to
/// the version of the task.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The repository's name, `owner/name`.
    pub repo: String,
    /// The versions it was tried with, as rows write them.
    pub versions: Vec<String>,
    /// Versions of Python it works with, `3.11`, the best first.
    pub python: Vec<String>,
    /// What is installed first, as pip's requirements: build tools and pins.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Requirement files of the repository that are installed next.
    #[serde(default)]
    pub requirements: Vec<String>,
    /// Commands that install the repository itself.
    pub install: Vec<String>,
    /// Other files of the repository that the environment depends on.
    #[serde(default)]
    pub inputs: Vec<String>,
    /// Environment of every phase.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The command that runs the test files which are put behind it.
    pub test: String,
}

/// Why recipes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// They are not in the data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The file is not a list of recipes.
    #[error("read `{FILE}`: {0}")]
    Form(String),
    /// Two recipes are for one version.
    #[error("read `{FILE}`: two recipes are for {repo} {version}")]
    Twice {
        /// The repository.
        repo: String,
        /// The version.
        version: String,
    },
}

impl Recipes {
    /// The recipes of the data.
    ///
    /// # Errors
    /// When the file is missing or not a list of recipes, each for versions of its own.
    pub fn load(data: &Data) -> Result<Self, RecipeError> {
        Self::parse(data.text(FILE)?)
    }

    fn parse(text: &str) -> Result<Self, RecipeError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            recipes: Vec<Recipe>,
        }
        let File { recipes } =
            serde_saphyr::from_str(text).map_err(|error| RecipeError::Form(error.to_string()))?;
        let mut known = std::collections::HashSet::new();
        for recipe in &recipes {
            for version in &recipe.versions {
                if !known.insert((&recipe.repo, version)) {
                    let (repo, version) = (recipe.repo.clone(), version.clone());
                    return Err(RecipeError::Twice { repo, version });
                }
            }
        }
        Ok(Self { recipes })
    }

    /// The recipe for a version of a repository.
    pub fn find(&self, repo: &str, version: &str) -> Option<&Recipe> {
        self.recipes
            .iter()
            .find(|recipe| recipe.repo == repo && recipe.versions.iter().any(|v| v == version))
    }

    /// The versions of a repository that there are recipes for.
    pub fn versions(&self, repo: &str) -> Vec<&str> {
        let of_repo = self.recipes.iter().filter(|recipe| recipe.repo == repo);
        of_repo.flat_map(|recipe| recipe.versions.iter().map(String::as_str)).collect()
    }
}

impl Recipe {
    /// What makes the environment, in order.
    pub fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        if !self.packages.is_empty() {
            let packages: Vec<String> = self.packages.iter().map(|name| quoted(name)).collect();
            commands.push(format!("python -m pip install {}", packages.join(" ")));
        }
        commands.extend(
            self.requirements
                .iter()
                .map(|file| format!("python -m pip install -r {}", quoted(file))),
        );
        commands.extend(self.install.iter().cloned());
        commands
    }

    /// The files of the repository that the environment depends on.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let named = self.requirements.iter().chain(&self.inputs).map(String::as_str);
        SETUP_FILES.into_iter().chain(named)
    }
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
recipes:
  - repo: d/r
    versions: ['1.0', '1.10']
    python: ['3.11']
    packages: ['setuptools<70', wheel]
    requirements: [tests.txt]
    install: ['python -m pip install -e .']
    inputs: [more.txt]
    env: {A: b}
    test: pytest -rA
  - {repo: d/other, versions: ['1.0'], python: ['3.9'], install: [make], test: make test}
";

    #[test]
    fn a_recipe_is_for_its_repository_and_versions_only() {
        let recipes = Recipes::parse(TWO).unwrap();
        let recipe = recipes.find("d/r", "1.10").unwrap();
        assert_eq!(
            recipe.commands(),
            [
                "python -m pip install 'setuptools<70' 'wheel'",
                "python -m pip install -r 'tests.txt'",
                "python -m pip install -e .",
            ]
        );
        assert_eq!(
            recipe.files().collect::<Vec<_>>(),
            ["pyproject.toml", "setup.cfg", "setup.py", "tests.txt", "more.txt"]
        );
        assert_eq!(recipes.find("d/other", "1.0").unwrap().commands(), ["make"]);
        for (repo, version) in [("d/r", "1.1"), ("d/r", ""), ("d/other", "1.10"), ("r", "1.0")] {
            assert_eq!(recipes.find(repo, version), None, "{repo} {version}");
        }
        assert_eq!(recipes.versions("d/r"), ["1.0", "1.10"]);
    }

    #[test]
    fn unclear_recipes_are_refused() {
        let twice = TWO.replace("d/other", "d/r");
        let error = Recipes::parse(&twice).unwrap_err().to_string();
        assert!(error.ends_with("two recipes are for d/r 1.0"), "{error}");
        let misspelt = TWO.replace("install:", "instal:");
        assert!(matches!(Recipes::parse(&misspelt), Err(RecipeError::Form(_))));
    }

    #[test]
    fn the_built_in_recipes_load_and_are_whole() {
        let recipes = Recipes::load(&Data::open(&[]).unwrap()).unwrap();
        assert!(recipes.find("pallets/flask", "2.3").is_some());
        for recipe in &recipes.recipes {
            assert!(!recipe.python.is_empty() && !recipe.install.is_empty(), "{recipe:?}");
        }
    }
}
