//! `nacre lctl`: parameters and devices of a running process.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use params::Registry;
use serde::Deserialize;
use serde_json::Value;

use crate::cli::{Lctl, LctlCommand};
use crate::control::{self, Request};
use crate::daemon;
use crate::known_params;
use crate::node_requests::Device;
use crate::output::{describe, errln, outln};
use crate::process::{self, ProcessRecord};
use crate::start::StartConfig;

/// Time limit for an answer of the process.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Time limit of the changes in progress at a target that gets a barrier.
const BARRIER_MAX: Duration = Duration::from_secs(60);
/// Interval at which the command asks whether the target has its barrier.
const BARRIER_POLL: Duration = Duration::from_millis(20);

/// Runs the command.
pub(crate) fn run(args: Lctl) -> Result<ExitCode> {
    if let LctlCommand::HelpParam { patterns } = &args.command
        && args.dir.is_none()
        && args.mount.is_none()
        && process::all().is_empty()
    {
        return help_start_params(patterns);
    }
    let process = find_process(args.dir.as_deref(), args.mount.as_deref())?;
    let ask = |request: Request| control::call(&process.control, &request, ANSWER_MAX);
    let devices: Vec<Device> = match (&args.command, &args.device) {
        (LctlCommand::Dl { .. }, _) | (_, Some(_)) => control::decode(ask(Request::Devices)?)?,
        _ => Vec::new(),
    };
    let selected = match &args.device {
        Some(name) => Some(find_device(&devices, name)?),
        None => None,
    };
    match args.command {
        LctlCommand::GetParam {
            values_only,
            names_only,
            recursive,
            header,
            yaml,
            patterns,
        } => {
            let format = match () {
                () if names_only => Format::Names,
                () if yaml => Format::Yaml,
                () if header => Format::Header,
                () if values_only => Format::Values,
                () => Format::Both,
            };
            // As in Lustre, a pattern without a match does not hide the values of the others.
            let mut failure = None;
            for pattern in patterns {
                match get_params(&ask, &pattern, recursive) {
                    Ok(found) => {
                        for (name, value) in found {
                            outln!("{}", format_param(&name, &value, format));
                        }
                    }
                    Err(error) => {
                        if let Some(earlier) = failure.replace(error) {
                            errln!("nacre: {}", describe(&earlier));
                        }
                    }
                }
            }
            if let Some(error) = failure {
                return Err(error);
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
                print_help(&item.name, &item.about, item.writable);
            }
        }
        LctlCommand::Nodemap(change) => drop(ask(Request::Nodemap(change))?),
        LctlCommand::Ping { nid, timeout } => {
            let request = Request::Ping {
                nid: nid.to_string(),
                timeout_s: timeout,
            };
            control::decode::<Vec<String>>(ask(request)?)?
                .iter()
                .for_each(|line| outln!("{line}"));
        }
        LctlCommand::Dl { target, yaml } => {
            if yaml {
                outln!("devices:");
            }
            for (i, device) in devices
                .iter()
                .enumerate()
                .filter(|(i, _)| selected.is_none_or(|s| s == *i))
            {
                outln!("{}", format_device(i, device, target, yaml));
            }
        }
        LctlCommand::AbortRecovery => {
            let setting = format!("*.{}.abort_recovery=1", name_of_device(&devices, selected)?);
            set_param(&ask, &setting, false, false, true)?;
        }
        LctlCommand::Notransno => {
            let setting = format!("*.{}.barrier=notransno", name_of_device(&devices, selected)?);
            set_param(&ask, &setting, false, false, true)?;
        }
        LctlCommand::Readonly => keep_changes_in_memory(&ask, name_of_device(&devices, selected)?)?,
        LctlCommand::ListNids => process.nids.iter().for_each(|nid| outln!("{nid}")),
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of the device that the command needs.
fn name_of_device(devices: &[Device], selected: Option<usize>) -> Result<&str> {
    let device = selected.and_then(|position| devices.get(position));
    let device = device.context("name the target with --device: `nacre lctl dl` lists all")?;
    Ok(&device.name)
}

/// Keeps the later changes of a target in memory only; returns when this is so.
fn keep_changes_in_memory(ask: &dyn Fn(Request) -> Result<Value>, target: &str) -> Result<()> {
    let pattern = format!("*.{target}.barrier");
    set_param(ask, &format!("{pattern}=readonly"), false, false, true)?;
    let deadline = Instant::now() + BARRIER_MAX;
    loop {
        let request = Request::GetParam {
            pattern: pattern.clone(),
        };
        let found = control::decode::<Vec<(String, String)>>(ask(request)?)?;
        match found.first().map_or("", |(_, state)| state.as_str()) {
            "readonly" => return Ok(()),
            "pending" if Instant::now() < deadline => std::thread::sleep(BARRIER_POLL),
            state => bail!("{target}: {state}"),
        }
    }
}

fn print_help(name: &str, about: &str, writable: bool) {
    let set = if writable { " (can be set)" } else { "" };
    outln!("{name}: {about}{set}");
}

/// Describes start parameters without a process: a user needs them before the first start.
fn help_start_params(patterns: &[String]) -> Result<ExitCode> {
    let registry = Registry::default();
    let _params = StartConfig::default().register_params(&registry);
    for pattern in patterns {
        let found = registry.list(pattern, true);
        let mut params = found.iter().filter(|item| !item.is_level).peekable();
        if params.peek().is_none() {
            bail!(
                "no start parameter matches '{pattern}', and no nacre process is running, which would have others"
            );
        }
        params.for_each(|item| print_help(&item.name, item.about, item.writable));
    }
    Ok(ExitCode::SUCCESS)
}

/// The position of the device with this name or number. A `%` or `$` may precede the name.
fn find_device(devices: &[Device], name: &str) -> Result<usize> {
    let plain = name.trim_start_matches(['%', '$']);
    let by_name = devices.iter().position(|d| d.name == plain);
    let by_number = || name.parse().ok().filter(|n| *n < devices.len());
    by_name
        .or_else(by_number)
        .with_context(|| format!("device '{name}' does not exist in this process: `nacre lctl dl` lists all"))
}

/// A line of `dl`; in YAML, an item of a list. The reference count is always 1.
fn format_device(index: usize, device: &Device, show_target: bool, yaml: bool) -> String {
    let Device { kind, name, uuid, .. } = device;
    if yaml {
        return format!(
            "- index: {index}\n  status: UP\n  type: {kind}\n  name: {name}\n  uuid: {uuid}\n  refcount: 1"
        );
    }
    let nid = match &device.target {
        Some(target) if show_target => format!(" {}", target.nid),
        _ => String::new(),
    };
    format!("{index:3} UP {kind} {name} {uuid} 1{nid}")
}

/// Names and values of the parameters that match a pattern; with `recursive`, also of parameters
/// below matching levels. Fails without a match.
fn get_params(
    ask: &dyn Fn(Request) -> Result<Value>,
    pattern: &str,
    recursive: bool,
) -> Result<Vec<(String, String)>> {
    let get = |pattern: &str| -> Result<Vec<(String, String)>> {
        control::decode(ask(Request::GetParam {
            pattern: pattern.to_owned(),
        })?)
    };
    if recursive {
        let entries = list_params(ask, &[pattern.to_owned()], true)?;
        let names = entries.iter().filter(|entry| !entry.is_level);
        let found: Vec<_> = names.map(|entry| get(&entry.name)).collect::<Result<_>>()?;
        return Ok(found.into_iter().flatten().collect());
    }
    let found = get(pattern)?;
    if found.is_empty() {
        bail!("no parameter matches '{pattern}'");
    }
    Ok(found)
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
        let found: Vec<ParamEntry> = control::decode(ask(Request::ListParam {
            pattern: pattern.clone(),
            recursive,
        })?)?;
        if found.is_empty() {
            bail!("no parameter matches '{pattern}'");
        }
        entries.extend(found);
    }
    Ok(entries)
}

/// Performs one setting of `set_param`, and prints the new values of parameters that it set.
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
        let is_unknown = value.is_some() && !known_params::can_be_set(name);
        let text = match &value {
            Some(value) => format!("stored for all nodes: {name}={value}"),
            None => format!("deleted for all nodes: {name}"),
        };
        ask(Request::KeepParam {
            name: name.to_owned(),
            value,
        })?;
        outln!("{text}");
        if is_unknown {
            errln!(
                "nacre: warning: no node of Nacre has a parameter '{name}' that can be set; only Lustre's nodes may use the stored value (delete it with set_param -P -d)"
            );
        }
        return Ok(());
    }
    let value = value.with_context(|| format!("'{name}' needs a value: use {name}=VALUE"))?;
    let params: Vec<(String, String)> = control::decode(ask(Request::SetParam {
        pattern: name.to_owned(),
        value,
    })?)?;
    for (name, value) in params {
        let format = if values_only { Format::Values } else { Format::Both };
        outln!("{}", format_param(&name, &value, format));
    }
    Ok(())
}

/// The form of a parameter in the output.
#[derive(Clone, Copy)]
enum Format {
    /// `name=value`; a value of several lines begins on a new line.
    Both,
    Values,
    Names,
    /// The name before each line of the value.
    Header,
    Yaml,
}

fn format_param(name: &str, value: &str, format: Format) -> String {
    let value = value.trim_end_matches('\n');
    let is_multiline = value.contains('\n');
    match format {
        Format::Names => name.to_owned(),
        Format::Values => value.to_owned(),
        Format::Header => {
            let lines: Vec<String> = value.split('\n').map(|line| format!("{name}={line}")).collect();
            lines.join("\n")
        }
        // A JSON string is also a YAML value.
        Format::Yaml if !is_multiline && value.parse::<f64>().is_err() => {
            format!("{name}: {}", Value::from(value))
        }
        Format::Yaml if is_multiline => format!("{name}: |-\n  {}", value.replace('\n', "\n  ")),
        Format::Yaml => format!("{name}: {value}"),
        Format::Both if is_multiline => format!("{name}=\n{value}"),
        Format::Both => format!("{name}={value}"),
    }
}

/// The process that serves the directory or has the mount; without both, the only running process.
pub(super) fn find_process(dir: Option<&Path>, mount: Option<&Path>) -> Result<ProcessRecord> {
    if let Some(dir) = dir {
        let dir = daemon::make_absolute(dir)?;
        let found = process::in_dir(&dir)?.filter(ProcessRecord::is_alive);
        return found.with_context(|| format!("no nacre process runs in {}", dir.display()));
    }
    if let Some(mount) = mount {
        return process::by_path(mount).map(|(r, _)| r);
    }
    let mut all = process::all();
    match all.len() {
        0 => bail!(
            "no nacre process is running here: mount a file system (`nacre mount`), serve a target (`nacre serve`), or \
             start a node that only uses LNet (`nacre lnetctl lnet configure`); `nacre up` makes a new file system"
        ),
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
        let lines = "1\n2\n";
        for (format, value, text) in [
            (Format::Both, "1\n", "a.b=1"),
            (Format::Both, lines, "a.b=\n1\n2"),
            (Format::Values, "1", "1"),
            (Format::Names, "1", "a.b"),
            (Format::Header, lines, "a.b=1\na.b=2"),
            (Format::Header, "", "a.b="),
            (Format::Yaml, "1", "a.b: 1"),
            (Format::Yaml, "x: y", "a.b: \"x: y\""),
            (Format::Yaml, lines, "a.b: |-\n  1\n  2"),
        ] {
            assert_eq!(format_param("a.b", value, format), text);
        }
    }
}
