//! Log parsers: takes in what a test run printed, gives out which test ended how.
//!
//! Knows nothing of tasks, patches or expected tests. A parser named `parse_log_…` reads exactly what the SWE-bench
//! harness 5.0.2 reads, mistakes included, because published expectations were made with it. The parsers `pytest`,
//! `django`, `go`, `tap`, `unittest` and `exit` are patchgym's own and read what the runner meant.

mod django;
mod exit;
mod go;
mod pytest;
mod reading;
mod session;
mod sympy;
mod tap;
mod text;
mod unittest;

use crate::protocol::verdict::TestMap;

pub use exit::EXIT_STATUS;
pub use reading::Mark;
pub use reading::Reading;

pub(in crate::grade) use text::pattern;

/// A log parser; see [`parser`].
#[derive(Debug, Clone, Copy)]
pub struct Parser {
    name: &'static str,
    read: fn(&str) -> Reading,
}

impl Parser {
    /// The full name, such as `parse_log_pytest`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The tests a log names and how they ended. Never fails: a line the parser does not understand is passed over.
    pub fn parse(self, log: &str) -> TestMap {
        self.read(log).tests()
    }

    /// The same with what only grading needs: the order, unknown status words, and warnings.
    pub fn read(self, log: &str) -> Reading {
        (self.read)(log)
    }
}

const PARSERS: [Parser; 27] = [
    Parser { name: "pytest", read: session::pytest },
    Parser { name: "django", read: unittest::django },
    Parser { name: "unittest", read: unittest::unittest },
    Parser { name: "go", read: go::go },
    Parser { name: "tap", read: tap::tap },
    Parser { name: "exit", read: exit::exit },
    Parser { name: "parse_log_pytest", read: pytest::pytest },
    Parser { name: "parse_log_astroid", read: pytest::pytest },
    Parser { name: "parse_log_flask", read: pytest::pytest },
    Parser { name: "parse_log_marshmallow", read: pytest::pytest },
    Parser { name: "parse_log_pvlib", read: pytest::pytest },
    Parser { name: "parse_log_pyvista", read: pytest::pytest },
    Parser { name: "parse_log_sqlfluff", read: pytest::pytest },
    Parser { name: "parse_log_xarray", read: pytest::pytest },
    Parser { name: "parse_log_pytest_options", read: pytest::options },
    Parser { name: "parse_log_pydicom", read: pytest::options },
    Parser { name: "parse_log_pylint", read: pytest::options },
    Parser { name: "parse_log_requests", read: pytest::options },
    Parser { name: "parse_log_pytest_v2", read: pytest::v2 },
    Parser { name: "parse_log_astropy", read: pytest::v2 },
    Parser { name: "parse_log_scikit", read: pytest::v2 },
    Parser { name: "parse_log_sphinx", read: pytest::v2 },
    Parser { name: "parse_log_matplotlib", read: pytest::matplotlib },
    Parser { name: "parse_log_seaborn", read: pytest::seaborn },
    Parser { name: "parse_log_sympy", read: sympy::sympy },
    Parser { name: "parse_log_django", read: django::django },
    Parser { name: "parse_log_gotest", read: go::gotest },
];

/// The parser of that name, when there is one. `parse_log_` may be left out (`sympy` is `parse_log_sympy`), except
/// where the short name is a parser of our own.
pub fn parser(name: &str) -> Option<Parser> {
    let named = |wanted: &str| PARSERS.into_iter().find(|parser| parser.name == wanted);
    named(name).or_else(|| named(&format!("parse_log_{name}")))
}

/// The full names of all parsers, ours first.
pub fn names() -> impl Iterator<Item = &'static str> {
    PARSERS.into_iter().map(Parser::name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_names_are_official_unless_ours() {
        let full = |name: &str| parser(name).map(Parser::name);
        assert_eq!(full("astropy"), Some("parse_log_astropy"));
        assert_eq!(full("gotest"), Some("parse_log_gotest"));
        assert_eq!(full("pytest"), Some("pytest"));
        assert_eq!(full("parse_log_pytest"), Some("parse_log_pytest"));
        assert_eq!(full("parse_log_tap"), None);
        assert_eq!(full(""), None);
        for name in names() {
            assert_eq!(full(name), Some(name));
        }
    }

    /// Pieces of every runner's output, so that random logs reach the deeper branches.
    const PIECES: [&str; 44] = [
        "PASSED",
        "FAILED",
        "ERROR",
        "SKIPPED",
        "XFAIL",
        "XPASS",
        " - ",
        " ",
        "\n",
        "\r\n",
        "\t",
        "t.py::test_a[",
        "]",
        "[1]",
        "[100%]",
        "::",
        "/",
        "//",
        "*",
        "\u{1b}[32m",
        "[0m",
        "=== test session starts ===",
        "=== short test summary info ===",
        "=== 1 passed in 0.1s ===",
        "test_x (a.B)",
        "test_x (a.B.test_x)",
        " ... ",
        " ...",
        "ok",
        "FAIL:",
        "ERROR:",
        "skipped 'x'",
        "expected failure",
        "Ran 1 test in 0.1s",
        "======",
        "--- PASS: ",
        "=== RUN   ",
        "TestA",
        " (0.00s)",
        "FAIL\tpkg [build failed]",
        "not ok 1",
        "# SKIP",
        "\\#",
        "\u{e9}\u{85}\u{1c}",
    ];

    proptest! {
        #[test]
        fn no_log_makes_a_parser_panic(
            pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..40),
            noise in any::<String>(),
        ) {
            let log = pieces.concat() + &noise;
            for parser in PARSERS {
                parser.parse(&log);
            }
        }
    }
}
