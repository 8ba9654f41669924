//! `nacre lnetctl`: shows and changes the networks, routes and peers of a running process, as
//! Lustre's lnetctl does; runs processes that are only LNet nodes, such as routers.

mod cli;
mod import;
mod op;
mod show;
mod yaml;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub(crate) use cli::Lnetctl;
pub(crate) use op::Op;

use super::lctl::find_process;
use crate::control::{self, Request};
use crate::daemon;
use crate::lifecycle::{DaemonSpec, log_in};
use crate::net::{self, AddressPreference};
use crate::output::outln;
use crate::process::{self, ProcessRecord};
use crate::process_node::ProcessNode;
use crate::start::StartConfig;

use cli::{Command, Configure, LnetCommand};

/// Time limit for an answer of the process, in addition to the waits for pinged nodes.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Runs the command.
pub(crate) fn run(args: Lnetctl) -> Result<ExitCode> {
    let Lnetctl { dir, mount, command } = args;
    let process = || find_process(dir.as_deref(), mount.as_deref());
    let other = match command.into_op() {
        Ok(op) => {
            print(&ask(&process()?, op)?);
            return Ok(ExitCode::SUCCESS);
        }
        Err(other) => *other,
    };
    match other {
        Command::Lnet(LnetCommand::Configure(configure)) => return run_node(dir.as_deref(), &configure),
        Command::Lnet(LnetCommand::Unconfigure) => {
            let dir = node_dir(dir.as_deref())?;
            let record = process::in_dir(&dir)?.filter(ProcessRecord::is_up);
            let record = record.with_context(|| format!("no nacre process runs in {}", dir.display()))?;
            super::stop(&record, false)?;
        }
        Command::Import { del, file, .. } => {
            let process = process()?;
            let ops = import::parse(&read_input(file.as_deref())?, del)?;
            let errors: Vec<String> = ops
                .into_iter()
                .filter_map(|op| ask(&process, op).err().map(|e| format!("{e:#}")))
                .collect();
            if !errors.is_empty() {
                let errors = errors.join("\n  ");
                bail!("parts of this configuration failed:\n  {errors}");
            }
        }
        Command::Export { file } => {
            let text = ask(&process()?, Op::Export)?;
            match file {
                None => print(&text),
                Some(file) => process::write_atomically(&daemon::make_absolute(&file)?, &text)?,
            }
        }
        _ => bail!("unknown lnetctl command"),
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(process: &ProcessRecord, op: Op) -> Result<String> {
    let answer = control::call(&process.control, &Request::Lnet(op), ANSWER_MAX)?;
    Ok(answer.as_str().unwrap_or_default().to_owned())
}

fn print(text: &str) {
    if !text.is_empty() {
        outln!("{}", text.trim_end_matches('\n'));
    }
}

/// Reads a file, or standard input.
fn read_input(file: Option<&Path>) -> Result<String> {
    let Some(file) = file else {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
        return Ok(text);
    };
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Directory for the record and log of a process that is only an LNet node: the given directory, or
/// `lnet` in the run directory.
fn node_dir(dir: Option<&Path>) -> Result<PathBuf> {
    match dir {
        Some(dir) => daemon::make_absolute(dir),
        None => Ok(process::run_dir()?.join("lnet")),
    }
}

fn run_node(dir: Option<&Path>, args: &Configure) -> Result<ExitCode> {
    // As in Lustre, the default is the network tcp on the first interface.
    let default = args.net.listen.is_none().then(|| "networks=tcp".to_owned());
    let start = StartConfig::new(&args.start, default.as_slice())?;
    let dir = node_dir(dir)?;
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    if !daemon::is_child()
        && let Some(record) = process::in_dir(&dir)?.filter(ProcessRecord::is_up)
    {
        bail!("process {} already runs in {}", record.pid, dir.display());
    }
    let spec = DaemonSpec {
        takes_over: false,
        role: "lnet",
        log: log_in(&dir),
        dirs: vec![dir],
        foreground: args.foreground,
        start: start.clone(),
    };
    spec.run(async move |cpts| {
        let choose = || net::server_endpoint(&args.net, &start.lnet, &AddressPreference::default());
        let node = ProcessNode::start(cpts, &start, false, choose).await?;
        let nids: Vec<String> = node.nids().iter().map(ToString::to_string).collect();
        let kind = if start.lnet.forwarding {
            "a router"
        } else {
            "a node"
        };
        let nids = nids.join(" ");
        Ok((
            node,
            format!("{kind} at {nids}, until nacre lnetctl lnet unconfigure"),
        ))
    })
}
