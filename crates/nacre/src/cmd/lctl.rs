//! `nacre lctl`: parameters and devices of a running process.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::{Lctl, LctlCommand};
use crate::control::{self, Request};
use crate::daemon;
use crate::output::outln;
use crate::process::{self, ProcessRecord};

/// Time limit for an answer of the process.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Runs the command.
pub(crate) fn run(args: Lctl) -> Result<ExitCode> {
    let process = find(args.dir.as_deref(), args.mount.as_deref())?;
    let ask = |request: Request| control::call(&process.control, &request, ANSWER_MAX);
    match args.command {
        LctlCommand::GetParam {
            values_only,
            names_only,
            patterns,
        } => {
            for pattern in patterns {
                let found: Vec<(String, String)> = decode_list(ask(Request::GetParam {
                    pattern: pattern.clone(),
                })?);
                if found.is_empty() {
                    bail!("no parameter matches '{pattern}'");
                }
                for (name, value) in found {
                    outln!("{}", format_param(&name, &value, values_only, names_only));
                }
            }
        }
        LctlCommand::SetParam {
            permanent,
            delete,
            values_only,
            settings,
        } => {
            for setting in settings {
                set_param(&ask, &setting, permanent, delete, values_only)?;
            }
        }
        LctlCommand::ListParam {
            classify,
            recursive,
            patterns,
        } => {
            for item in list_params(&ask, &patterns, recursive)? {
                let mark = match (classify, item.is_level, item.writable) {
                    (true, true, _) => "/",
                    (true, _, true) => "=",
                    _ => "",
                };
                outln!("{}{mark}", item.name);
            }
        }
        LctlCommand::HelpParam { patterns } => {
            for item in list_params(&ask, &patterns, true)?.iter().filter(|i| !i.is_level) {
                let set = if item.writable { " (can be set)" } else { "" };
                outln!("{}: {}{set}", item.name, item.about);
            }
        }
        LctlCommand::Nodemap(change) => drop(ask(Request::Nodemap(change))?),
        LctlCommand::Ping { nid, timeout } => {
            let request = Request::Ping {
                nid: nid.to_string(),
                timeout_s: timeout,
            };
            decode_list::<String>(ask(request)?)
                .iter()
                .for_each(|line| outln!("{line}"));
        }
        LctlCommand::Dl => {
            for (i, line) in decode_list::<String>(ask(Request::Devices)?).iter().enumerate() {
                outln!("{i:3} {line}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A parameter or a level of the parameter tree.
#[derive(Deserialize)]
struct ParamEntry {
    name: String,
    is_level: bool,
    writable: bool,
    about: String,
}

/// The parameters that match the patterns. Fails for a pattern without a match.
fn list_params(
    ask: &dyn Fn(Request) -> Result<Value>,
    patterns: &[String],
    recursive: bool,
) -> Result<Vec<ParamEntry>> {
    let mut entries = Vec::new();
    for pattern in patterns {
        let found: Vec<ParamEntry> = decode_list(ask(Request::ListParam {
            pattern: pattern.clone(),
            recursive,
        })?);
        if found.is_empty() {
            bail!("no parameter matches '{pattern}'");
        }
        entries.extend(found);
    }
    Ok(entries)
}

/// Performs one setting of `set_param`.
fn set_param(
    ask: &dyn Fn(Request) -> Result<Value>,
    setting: &str,
    permanent: bool,
    delete: bool,
    values_only: bool,
) -> Result<()> {
    let (name, value) = match setting.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None if delete => (setting, None),
        None => bail!("'{setting}' is not of the form NAME=VALUE"),
    };
    if permanent {
        let value = if delete { None } else { value };
        ask(Request::KeepParam {
            name: name.to_owned(),
            value,
        })?;
        return Ok(());
    }
    let value = value.with_context(|| format!("'{name}' needs a value: use {name}=VALUE"))?;
    let params: Vec<(String, String)> = decode_list(ask(Request::SetParam {
        pattern: name.to_owned(),
        value,
    })?);
    for (name, value) in params {
        outln!("{}", format_param(&name, &value, values_only, false));
    }
    Ok(())
}

/// Formats a parameter like lctl: a multi-line value begins on a new line.
fn format_param(name: &str, value: &str, values_only: bool, names_only: bool) -> String {
    let value = value.trim_end_matches('\n');
    match (values_only, names_only, value.contains('\n')) {
        (_, true, _) => name.to_owned(),
        (true, _, _) => value.to_owned(),
        (_, _, true) => format!("{name}=\n{value}"),
        _ => format!("{name}={value}"),
    }
}

/// Decodes an answer that is a list; an answer of another form counts as an empty list.
fn decode_list<T: DeserializeOwned>(value: Value) -> Vec<T> {
    serde_json::from_value(value).unwrap_or_default()
}

/// The process that serves the directory or has the mount; without both, the only running process.
pub(super) fn find(dir: Option<&Path>, mount: Option<&Path>) -> Result<ProcessRecord> {
    if let Some(dir) = dir {
        let dir = daemon::absolute(dir)?;
        let found = process::in_dir(&dir)?.filter(ProcessRecord::alive);
        return found.with_context(|| format!("no nacre process runs in {}", dir.display()));
    }
    if let Some(mount) = mount {
        return process::by_path(mount).map(|(r, _)| r);
    }
    let mut all = process::all();
    match all.len() {
        0 => bail!("no nacre is running here: start one with `nacre up`"),
        1 => Ok(all.remove(0)),
        _ => {
            let name = |r: &ProcessRecord| match (r.dirs.first(), r.mounts.first()) {
                (Some(dir), _) => format!("--dir {}", dir.display()),
                (None, Some(mount)) => format!("--mount {}", mount.mountpoint.display()),
                (None, None) => format!("process {}", r.pid),
            };
            let names: Vec<String> = all.iter().map(name).collect();
            bail!(
                "several nacre processes are running; select one with:\n  {}",
                names.join("\n  ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_formatted_as_by_lctl() {
        assert_eq!(format_param("a.b", "1\n", false, false), "a.b=1");
        assert_eq!(format_param("a.b", "1\n2\n", false, false), "a.b=\n1\n2");
        assert_eq!(format_param("a.b", "1", true, false), "1");
        assert_eq!(format_param("a.b", "1", false, true), "a.b");
    }
}
