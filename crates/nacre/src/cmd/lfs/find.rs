//! `lfs find`: the files of directory trees that pass tests, with the tests and rules of Lustre's
//! lfs find.
//!
//! The command reads the mount as an ordinary program. After an error it reports the path and
//! continues; it fails at the end.

mod ids;
mod names;
mod printf;
mod test;

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::cmd::walk;
use ids::Ids;
use names::Names;
use printf::Piece;
use test::{Candidate, Test};

/// Bytes of output to collect for a file or pipe.
const PIECE_BYTES: usize = 64 << 10;
/// Long names of the options and actions, which are not tests.
const OPTIONS: [&str; 7] = ["print", "print0", "printf", "ls", "lazy", "mindepth", "maxdepth"];

/// The form of the output.
#[derive(PartialEq, Eq, Debug)]
enum OutputFormat {
    Lines,
    /// Paths that end with a zero byte.
    NulTerminated,
    /// Inode, KiB, mode, links, owner, group, size, time, path.
    Long,
    /// The format of `-printf`.
    Pieces(Vec<Piece>),
}

/// A parsed command line.
struct Find {
    paths: Vec<PathBuf>,
    /// Each test, and whether it is negated with `!`.
    tests: Vec<(Test, bool)>,
    format: OutputFormat,
    min_depth: usize,
    max_depth: usize,
    names: Names,
}

/// Runs the command.
pub(super) fn run(args: &[OsString]) -> Result<ExitCode> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs() as i64;
    let find = parse(args, now, Names::read())?;
    let mut errors = 0;
    let mut output = Output::new();
    for path in &find.paths {
        errors += find.visit_all(path, &mut output);
    }
    output.flush();
    Ok(match errors {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Parses paths, then tests and actions; `now` is in seconds since 1970.
fn parse(args: &[OsString], now: i64, names: Names) -> Result<Find> {
    let mut find = Find {
        paths: Vec::new(),
        tests: Vec::new(),
        format: OutputFormat::Lines,
        min_depth: 0,
        max_depth: usize::MAX,
        names,
    };
    let mut args = args.iter();
    let mut negated = false;
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        if text == "!" || text == "-not" || text == "--not" {
            negated = !negated;
            continue;
        }
        if !text.starts_with('-') || text == "-" {
            if negated {
                bail!("lfs find: a test must follow '!', not the path {text}");
            }
            find.paths.push(arg.into());
            continue;
        }
        let (name, attached) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") || name == "-foreign" => {
                (name, Some(OsStr::new(value)))
            }
            _ => (text, None),
        };
        let name = long_name(name.trim_start_matches('-'));
        if negated && OPTIONS.contains(&name) {
            bail!("lfs find: a test must follow '!', not {text}");
        }
        match name {
            "print" => find.format = OutputFormat::Lines,
            "print0" => find.format = OutputFormat::NulTerminated,
            "ls" => find.format = OutputFormat::Long,
            // No effect: this command never uses the MDT's lazy size (LSOM), always `stat`.
            "lazy" => {}
            _ => {
                let value = match name {
                    // Its value is optional, and follows `=`.
                    "foreign" => attached,
                    _ => attached.or_else(|| args.next().map(OsString::as_os_str)),
                };
                let context = || match value {
                    Some(value) => format!("lfs find: {text} {}", value.display()),
                    None => format!("lfs find: {text}"),
                };
                match name {
                    "mindepth" => find.min_depth = parse_number(value).with_context(context)?,
                    "maxdepth" => find.max_depth = parse_number(value).with_context(context)?,
                    "printf" => {
                        let format = value.context("the option needs a value");
                        let pieces = format.and_then(|f| printf::parse(f.as_bytes()));
                        find.format = OutputFormat::Pieces(pieces.with_context(context)?);
                    }
                    _ => {
                        let test = Test::parse(name, value, now, &find.names).with_context(context)?;
                        find.tests.push((test, negated));
                    }
                }
            }
        }
        negated = false;
    }
    if negated {
        bail!("lfs find: a test must follow '!'");
    }
    if find.paths.is_empty() {
        bail!("lfs find: name a directory or file first: lfs find DIR.. [TEST..]");
    }
    // All tests must pass, so their order is free. Run the tests without `stat` first: most files
    // fail one of them, so `stat` need not wait for their OSTs.
    find.tests.sort_by_key(|(test, _)| test.needs_attributes());
    Ok(find)
}

fn parse_number(value: Option<&OsStr>) -> Result<usize> {
    let value = value.context("the option needs a value")?;
    value
        .to_str()
        .and_then(|v| v.parse().ok())
        .context("the value is not a number")
}

/// The long name of an option with one letter.
fn long_name(name: &str) -> &str {
    match name {
        "A" => "atime",
        "b" => "blocks",
        "B" | "crtime" => "btime",
        "C" => "ctime",
        "M" => "mtime",
        "n" => "name",
        "t" => "type",
        "s" => "size",
        "u" | "U" | "user" => "uid",
        "g" | "G" | "group" => "gid",
        "O" | "obd" => "ost",
        "c" => "stripe-count",
        "S" => "stripe-size",
        "i" => "stripe-index",
        "d" => "mindepth",
        "D" => "maxdepth",
        "P" => "print",
        "0" => "print0",
        "l" => "lazy",
        other => other,
    }
}

impl Find {
    /// Prints the matching files at and below a path. Returns the number of errors.
    fn visit_all(&self, top: &Path, output: &mut Output) -> usize {
        let ids = Ids::new(top);
        walk::walk("lfs find", top, |path, depth| {
            let is_dir = self.visit(path, depth, &ids, output)?;
            Ok(is_dir && depth < self.max_depth)
        })
    }

    /// Prints a file if it matches. Returns whether it is a directory.
    fn visit(&self, path: &Path, depth: usize, ids: &Ids<'_>, output: &mut Output) -> Result<bool> {
        let mut file = Candidate::new(path, ids)?;
        let is_dir = file.is_dir();
        if depth >= self.min_depth && self.matches(&mut file)? {
            output.add(&self.line(path, &mut file)?);
        }
        Ok(is_dir)
    }

    fn matches(&self, file: &mut Candidate<'_>) -> Result<bool> {
        for (test, negated) in &self.tests {
            if test.passes(file)? == *negated {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The output for a file.
    fn line(&self, path: &Path, file: &mut Candidate<'_>) -> Result<Vec<u8>> {
        let (head, end): (String, &[u8]) = match &self.format {
            OutputFormat::Pieces(pieces) => return printf::format(pieces, file),
            OutputFormat::Long => (file.long_form(&self.names)?, b"\n"),
            OutputFormat::Lines => (String::new(), b"\n"),
            OutputFormat::NulTerminated => (String::new(), b"\0"),
        };
        Ok([head.as_bytes(), path.as_os_str().as_bytes(), end].concat())
    }
}

/// Lines for standard output. A terminal gets each at once, a file or pipe gets large pieces.
struct Output {
    buffer: Vec<u8>,
    /// The size of the buffer, in bytes, at which it is written.
    flush_bytes: usize,
}

impl Output {
    fn new() -> Output {
        let flush_bytes = if std::io::stdout().is_terminal() {
            1
        } else {
            PIECE_BYTES
        };
        let buffer = Vec::new();
        Output { buffer, flush_bytes }
    }

    fn add(&mut self, line: &[u8]) {
        self.buffer.extend_from_slice(line);
        if self.buffer.len() >= self.flush_bytes {
            self.flush();
        }
    }

    fn flush(&mut self) {
        crate::output::write_bytes(&self.buffer);
        self.buffer.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse_line(line: &str) -> Result<Find, String> {
        let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
        parse(&args, 0, Names::default()).map_err(|e| crate::output::describe(&e))
    }

    #[test]
    fn negation_must_precede_a_test() {
        for action in ["-print", "-print0", "-ls", "-printf %p", "-maxdepth 1", "path"] {
            let error = parse_line(&format!("t ! {action}")).err().unwrap();
            let name = action.split(' ').next().unwrap();
            assert!(error.contains("a test must follow '!', not"), "{error}");
            assert!(error.ends_with(name), "{error}");
        }
        assert!(
            parse_line("t !")
                .err()
                .unwrap()
                .contains("a test must follow '!'")
        );
        assert_eq!(
            parse_line("t ! -name x -print0").unwrap().format,
            OutputFormat::NulTerminated
        );
    }

    #[test]
    fn value_of_the_test_for_foreign_layouts_is_optional() {
        for (line, tests) in [
            ("t -foreign", 1),
            ("t -foreign -name x", 2),
            ("t -foreign=S3 ! --foreign=7", 2),
        ] {
            assert_eq!(parse_line(line).unwrap().tests.len(), tests, "{line}");
        }
        let error = parse_line("t --foreign=s3").err().unwrap();
        assert!(error.contains("not a foreign type"), "{error}");
    }

    #[test]
    fn name_of_a_test_is_checked_before_its_value() {
        for line in ["t -h", "t -btime", "t -btime x", "t --btime=x"] {
            let error = parse_line(line).err().unwrap();
            assert!(error.contains("is not available"), "{error}");
        }
        for line in [
            "t -name",
            "t -size",
            "t -maxdepth",
            "t -printf",
            "t -pool",
            "t -projid",
        ] {
            let error = parse_line(line).err().unwrap();
            assert!(error.contains("needs a value"), "{error}");
        }
    }
}
