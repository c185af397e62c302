//! The JSON schema of the record format, for programs in other languages.

use crate::protocol::record::Record;

/// The JSON Schema of one line of a log, as `trajectories/schema.json` holds it.
pub fn text() -> String {
    format!("{:#}\n", schemars::schema_for!(Record).as_value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checked_in_schema_is_the_one_the_types_have() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/trajectories/schema.json");
        if std::env::var_os("PATCHGYM_UPDATE_SCHEMA").is_some_and(|value| value == "1") {
            fs_err::write(path, text()).unwrap();
        }
        let checked_in = fs_err::read_to_string(path).unwrap();
        assert!(
            checked_in == text(),
            "trajectories/schema.json is out of date; write it anew with PATCHGYM_UPDATE_SCHEMA=1 cargo test schema"
        );
    }
}
