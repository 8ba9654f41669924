//! `lfs find`: the files of directory trees that pass tests, with the tests and rules of Lustre's
//! lfs find.
//!
//! The command reads the mount as an ordinary program. It stops at no error: it reports the path,
//! goes on, and fails at the end.

mod names;
mod test;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use names::Names;
use test::{Candidate, Test};

/// The form of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Print {
    Lines,
    /// Paths that end with a zero byte.
    Zeros,
    /// Inode, KiB, mode, links, owner, group, size, time, path.
    Long,
}

/// A parsed command line.
struct Find {
    paths: Vec<PathBuf>,
    /// Each test, and whether it is negated with `!`.
    tests: Vec<(Test, bool)>,
    print: Print,
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
    for path in &find.paths {
        errors += find.visit_all(path);
    }
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
        print: Print::Lines,
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
            Some((name, value)) if name.starts_with("--") => (name, Some(OsStr::new(value))),
            _ => (text, None),
        };
        let name = long_name(name.trim_start_matches('-'));
        match name {
            "print" => find.print = Print::Lines,
            "print0" => find.print = Print::Zeros,
            "ls" => find.print = Print::Long,
            // Sizes always come from the client, which knows those of its open files.
            "lazy" => {}
            _ => {
                let next = || args.next().map(OsString::as_os_str);
                let value = attached.or_else(next);
                let value = value.with_context(|| format!("lfs find: {text} needs a value"))?;
                let context = || format!("lfs find: {text} {}", value.display());
                match name {
                    "mindepth" => find.min_depth = number(value).with_context(context)?,
                    "maxdepth" => find.max_depth = number(value).with_context(context)?,
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
    Ok(find)
}

fn number(value: &OsStr) -> Result<usize> {
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
    fn visit_all(&self, top: &Path) -> usize {
        let mut errors = 0;
        let mut waiting = vec![(top.to_path_buf(), 0)];
        while let Some((path, depth)) = waiting.pop() {
            let outcome = self.visit(&path, depth).and_then(|is_dir| match is_dir {
                true if depth < self.max_depth => entries(&path),
                _ => Ok(Vec::new()),
            });
            match outcome {
                Ok(found) => waiting.extend(found.into_iter().rev().map(|path| (path, depth + 1))),
                Err(e) => {
                    eprintln!("nacre: lfs find: {}", crate::output::describe(&e));
                    errors += 1;
                }
            }
        }
        errors
    }

    /// Prints a file if it matches. Returns whether it is a directory.
    fn visit(&self, path: &Path, depth: usize) -> Result<bool> {
        let meta = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
        let is_dir = meta.is_dir();
        let mut file = Candidate::new(path, meta);
        if depth >= self.min_depth && self.matches(&mut file)? {
            self.print(path, &file);
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

    fn print(&self, path: &Path, file: &Candidate<'_>) {
        let mut line = match self.print {
            Print::Long => file.long_form(&self.names).into_bytes(),
            _ => Vec::new(),
        };
        line.extend_from_slice(path.as_os_str().as_bytes());
        line.push(if self.print == Print::Zeros { 0 } else { b'\n' });
        crate::output::write_bytes(&line);
    }
}

/// The paths of a directory's entries, sorted.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let context = || dir.display().to_string();
    let list = fs::read_dir(dir).with_context(context)?;
    let mut paths = list
        .map(|entry| entry.map(|e| join(dir, &e.file_name())))
        .collect::<Result<Vec<_>, _>>()
        .with_context(context)?;
    paths.sort();
    Ok(paths)
}

/// Appends a name to the path as given, without a second slash.
fn join(dir: &Path, name: &OsStr) -> PathBuf {
    let mut path = dir.as_os_str().as_bytes().to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    PathBuf::from(OsString::from_vec(path))
}
