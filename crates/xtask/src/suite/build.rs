//! Builds the test binaries with cargo, and finds their paths in its messages.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::stage::cargo;

/// A test binary.
pub(super) struct Binary {
    /// The crate's name.
    pub(super) package: String,
    /// The target's name; for unit tests, the crate's name.
    pub(super) name: String,
    /// Whether it contains unit tests.
    pub(super) has_unit_tests: bool,
    pub(super) path: PathBuf,
    /// The crate's directory, the working directory of its tests.
    pub(super) dir: PathBuf,
}

/// Builds the test binaries of these crates; without any, of the whole workspace.
pub(super) fn build_binaries(packages: &[String]) -> Result<Vec<Binary>, String> {
    println!("=== building the tests");
    // Includes unit tests; the lints compile the examples.
    let mut build = cargo(["test", "--no-run", "--locked", "--tests"]);
    build.arg("--message-format=json-render-diagnostics");
    if packages.is_empty() {
        build.arg("--workspace");
    }
    for package in packages {
        build.args(["-p", package]);
    }
    let mut child = build
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("!!! cannot run cargo: {e}"))?;
    let messages = child.stdout.take().map(BufReader::new);
    let lines = messages.into_iter().flat_map(|m| m.lines().map_while(Result::ok));
    let found = lines.filter_map(|line| parse_message(&line)).collect();
    match child.wait() {
        Ok(status) if status.success() => Ok(found),
        _ => Err("!!! cannot build the tests".to_owned()),
    }
}

/// The test binary in a message of cargo, if any.
fn parse_message(message: &str) -> Option<Binary> {
    // The target has a field `test` as well, with another meaning.
    let profile = &message[message.find("\"profile\":{")?..];
    if !profile.contains("\"test\":true}") {
        return None;
    }
    let path = text_of(message, "\"executable\":\"")?;
    let dir = Path::new(text_of(message, "\"manifest_path\":\"")?).parent()?;
    let target = &message[message.find("\"target\":{")?..];
    Some(Binary {
        package: dir.file_name()?.to_string_lossy().into_owned(),
        name: text_of(target, "\"name\":\"")?.to_owned(),
        has_unit_tests: text_of(target, "\"kind\":[\"")? != "test",
        path: path.into(),
        dir: dir.to_owned(),
    })
}

/// The text between `after` and the next quotation mark.
fn text_of<'a>(message: &'a str, after: &str) -> Option<&'a str> {
    let rest = &message[message.find(after)? + after.len()..];
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::parse_message;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///n/crates/client#0.1.0","manifest_path":"/n/crates/client/Cargo.toml","target":{"kind":["KIND"],"crate_types":["bin"],"name":"it","src_path":"/n/crates/client/tests/it/main.rs","doc":true,"doctest":false,"test":true},"profile":{"opt_level":"1","debuginfo":1,"test":TEST},"features":[],"filenames":[],"executable":"/n/target/debug/deps/it-0","fresh":true}"#;

    #[test]
    fn cargo_messages_name_the_test_binaries() {
        let found = parse_message(&MESSAGE.replace("KIND", "test").replace("TEST", "true")).unwrap();
        assert_eq!((found.package.as_str(), found.name.as_str()), ("client", "it"));
        assert_eq!(found.path.to_str(), Some("/n/target/debug/deps/it-0"));
        assert_eq!(found.dir.to_str(), Some("/n/crates/client"));
        assert!(!found.has_unit_tests);
        assert!(
            parse_message(&MESSAGE.replace("KIND", "lib").replace("TEST", "true"))
                .unwrap()
                .has_unit_tests
        );
        assert!(
            parse_message(&MESSAGE.replace("TEST", "false")).is_none(),
            "not a test"
        );
    }
}
