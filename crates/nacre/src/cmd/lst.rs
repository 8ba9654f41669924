//! `nacre lst`: LNet selftest. A console is a background process with the key of a session; all
//! commands except `node` and `new_session` send requests to its control socket. A node under test
//! is a background process, too.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lst_console::{
    Command, CommandOutput, GroupCounts, GroupUpdate, NodeFilter, NodeState, PingTarget, QueryFilter, Rates,
    RatesFilter, SessionConfig, TestRequest, parse_test,
};

use super::stop;
use crate::cli::{AddTest, Lst, LstNode, LstPing, LstQuery, LstStat, Net, NewSession, UpdateGroup};
use crate::control::{self, Request};
use crate::daemon;
use crate::lifecycle::DaemonSpec;
use crate::net::{self, AddressPreference};
use crate::output::{self, outln};
use crate::process::{self, ProcessRecord};
use crate::process_node::ProcessNode;
use crate::start::StartConfig;
use wire::Nid;

/// Time limit for an answer of the console, in addition to the command's own `--timeout`.
const ANSWER_MAX: Duration = Duration::from_secs(180);
/// Time limit for the console's exit after its session has ended.
const CONSOLE_EXIT_MAX: Duration = Duration::from_secs(30);
/// Role of the process of a node under test.
const NODE_ROLE: &str = "lst node";
/// Role of the process of a console.
const CONSOLE_ROLE: &str = "lst console";

/// Runs the command.
pub(crate) fn run(command: Lst) -> Result<ExitCode> {
    let command = match command {
        Lst::Node(args) => return run_node(args),
        Lst::NewSession(args) => return new_session(args),
        Lst::Stat(args) => return stat(&args),
        Lst::Query(args) => return query(&args),
        Lst::ShowSession => return show_session(),
        Lst::EndSession => return end_session(),
        Lst::Ping(args) => ping_command(args),
        Lst::AddGroup { name, ids } => {
            check_reaches(&console()?, &ids)?;
            Command::AddGroup { name, ids }
        }
        Lst::DelGroup { name } => Command::DelGroup { name },
        Lst::UpdateGroup(args) => update_group_command(args)?,
        Lst::ListGroup(args) => {
            let switches = [
                (args.active, NodeState::Active),
                (args.busy, NodeState::Busy),
                (args.down, NodeState::Down),
                (args.unknown, NodeState::Unknown),
            ];
            let states: Vec<_> = switches
                .into_iter()
                .filter(|(on, _)| *on || args.all)
                .map(|(_, s)| s)
                .collect();
            Command::ListGroup {
                names: args.names,
                states: (!states.is_empty()).then_some(states),
            }
        }
        Lst::ShowError { session, names } => Command::ShowError {
            names,
            session_only: session,
        },
        Lst::AddBatch { name } => Command::AddBatch { name },
        Lst::Run { timeout, name } => Command::Run {
            name,
            timeout_s: timeout,
        },
        Lst::Stop { force, name } => Command::Stop { name, force },
        Lst::ListBatch(args) => {
            let (active, invalid) = (args.active || args.all, args.invalid || args.all);
            Command::ListBatch {
                name: args.name,
                test: args.test,
                server: args.server,
                nodes: (active || invalid).then_some(NodeFilter { active, invalid }),
            }
        }
        Lst::AddTest(args) => Command::AddTest(test_request(args)?),
    };
    Ok(print_output(&ask(&console()?, command)?))
}

/// The key of the session, from `LST_SESSION` as for Lustre's `lst`.
fn session_key() -> Result<u32> {
    let key = std::env::var("LST_SESSION")
        .ok()
        .and_then(|key| key.trim().parse().ok());
    key.filter(|&key| key != 0)
        .context("LST_SESSION does not name a session: export LST_SESSION=$$ (any number but 0)")
}

/// Running consoles with their session keys.
fn consoles() -> Vec<(u32, ProcessRecord)> {
    let processes = process::all().into_iter().filter(|r| r.role == CONSOLE_ROLE);
    processes.filter_map(|r| Some((r.session?, r))).collect()
}

/// The console of the session that `LST_SESSION` selects.
fn console() -> Result<ProcessRecord> {
    let key = session_key()?;
    let found = consoles().into_iter().find(|(session, _)| *session == key);
    found.map(|(_, record)| record).with_context(|| {
        format!("no session has the key {key} (LST_SESSION): begin one with `nacre lst new_session`")
    })
}

fn ask(console: &ProcessRecord, command: Command) -> Result<CommandOutput> {
    let answer = control::call(&console.control, &Request::Lst { command }, ANSWER_MAX)?;
    serde_json::from_value(answer).context("cannot decode the console's answer")
}

fn print_output(command_output: &CommandOutput) -> ExitCode {
    output::write(format_args!("{}", command_output.out));
    output::write_err(format_args!("{}", command_output.err));
    if command_output.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Starts a node under test, or stops running ones.
fn run_node(args: LstNode) -> Result<ExitCode> {
    if args.stop {
        let nid = args.net.listen.map(|nid| nid.to_string());
        let is_selected =
            |r: &ProcessRecord| r.role == NODE_ROLE && nid.as_ref().is_none_or(|nid| r.nids.contains(nid));
        let nodes: Vec<ProcessRecord> = process::all().into_iter().filter(is_selected).collect();
        if nodes.is_empty() {
            bail!("no matching LNet selftest node is running (`nacre status` lists all processes)");
        }
        for record in nodes {
            stop(&record, true)?;
            outln!("stopped: {}", record.nids.join(" "));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut start = StartConfig::new(&args.start, &[])?;
    start.lst.enabled = true;
    let preference = AddressPreference::default();
    if !daemon::is_child() {
        check_address(&args.net, &start)?;
    }
    let spec = DaemonSpec {
        takes_over: false,
        role: NODE_ROLE,
        dirs: Vec::new(),
        log: process::run_dir()?.join("lst-node.log"),
        foreground: args.foreground,
        start: start.clone(),
    };
    spec.run(async move |cpts| {
        let choose = || net::server_endpoint(&args.net, &start.lnet, &preference);
        let node = ProcessNode::start(cpts, &start, args.net.listen.is_none(), choose).await?;
        let endpoint = node.endpoint();
        Ok((
            node,
            format!("LNet selftest at {} port {}", endpoint.nid, endpoint.port),
        ))
    })
}

/// Fails if the console or node under test cannot have the address that the user chose.
fn check_address(net: &Net, start: &StartConfig) -> Result<()> {
    let endpoint = net::server_endpoint(net, &start.lnet, &AddressPreference::default());
    match endpoint {
        Err(e) if net.listen.is_some() => bail!(
            "{e:#}; a console or node of LNet selftest needs an address of its own. To test the node of a server or \
             mount, start that process with --param lnet_selftest=1"
        ),
        endpoint => endpoint.map(drop),
    }
}

/// Fails if the console has a loopback address and one of the nodes is on another machine.
fn check_reaches(console: &ProcessRecord, ids: &[String]) -> Result<()> {
    let own: Vec<Nid> = console.nids.iter().filter_map(|nid| nid.parse().ok()).collect();
    for node in ids.iter().filter_map(|id| id.parse::<Nid>().ok()) {
        if !own.iter().any(|nid| lnet::endpoint::may_reach(*nid, node)) {
            bail!(
                "the console at {} does not reach {node}: end the session, and begin it with `nacre lst new_session --listen` \
                 and an address of this host that no other nacre process uses",
                console.nids.join(" ")
            );
        }
    }
    Ok(())
}

/// Starts the console of a new session.
fn new_session(args: NewSession) -> Result<ExitCode> {
    let key = session_key()?;
    let name = args.name.clone().unwrap_or_else(default_session_name);
    let config = SessionConfig {
        name,
        key,
        timeout: Duration::from_secs(args.timeout),
        force: args.force,
        feats: features()?,
    };
    let mut start = StartConfig::new(&args.start, &[])?;
    start.lst.enabled = true;
    let preference = AddressPreference::default();
    if !daemon::is_child() {
        if let Some((_, old)) = consoles().into_iter().find(|(session, _)| *session == key) {
            if !args.force {
                bail!(
                    "a session with the key {key} exists already: end it, replace it with --force, or set another LST_SESSION"
                );
            }
            end_session_of(&old)?;
        }
        check_address(&args.net, &start)?;
    }
    let spec = DaemonSpec {
        takes_over: false,
        role: CONSOLE_ROLE,
        dirs: Vec::new(),
        log: process::run_dir()?.join("lst-console.log"),
        foreground: false,
        start: start.clone(),
    };
    spec.run(async move |cpts| {
        let choose = || net::server_endpoint(&args.net, &start.lnet, &preference);
        let mut node = ProcessNode::start(cpts, &start, args.net.listen.is_none(), choose).await?;
        match node.begin_session(config) {
            Ok(session_line) => Ok((node, session_line)),
            Err(e) => {
                let _ = node.stop().await;
                Err(e)
            }
        }
    })
}

/// The features that nodes must have, from `LST_FEATURES` as for Lustre's `lst`.
fn features() -> Result<u32> {
    let Some(text) = std::env::var_os("LST_FEATURES") else {
        return Ok(wire::LST_FEATS_MASK);
    };
    let text = text.to_string_lossy();
    let feats = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok();
    feats
        .filter(|feats| feats & !wire::LST_FEATS_MASK == 0)
        .with_context(|| {
            format!(
                "LST_FEATURES='{text}' is invalid: expected 0 or {:x}",
                wire::LST_FEATS_MASK
            )
        })
}

/// `USER@HOST`, truncated to the maximum length of a name.
fn default_session_name() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| process::uid().to_string());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    wire::Text::<{ wire::LST_NAME_SIZE as usize }>::truncated(&format!("{user}@{host}")).to_string()
}

/// Ends the session of a console and waits for the console's exit.
fn end_session_of(console: &ProcessRecord) -> Result<CommandOutput> {
    let output = ask(console, Command::EndSession)?;
    if !console.wait_for_exit(CONSOLE_EXIT_MAX) {
        bail!(
            "the console (process {}) does not exit; its log is {}",
            console.pid,
            console.log.display()
        );
    }
    Ok(output)
}

fn end_session() -> Result<ExitCode> {
    Ok(print_output(&end_session_of(&console()?)?))
}

/// Shows the session of the key; without a key, all sessions.
fn show_session() -> Result<ExitCode> {
    let key = session_key().ok();
    let found: Vec<_> = consoles()
        .into_iter()
        .filter(|(session, _)| key.is_none_or(|key| key == *session))
        .collect();
    if found.is_empty() {
        bail!("no session exists: begin one with `nacre lst new_session`");
    }
    for (_, console) in found {
        print_output(&ask(&console, Command::ShowSession)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn ping_command(args: LstPing) -> Command {
    let target = match (args.group, args.batch, args.nodes) {
        (Some(name), _, _) => PingTarget::Group(name),
        (_, Some(name), _) => PingTarget::Batch(name, args.server),
        (_, _, Some(list)) => PingTarget::Nodes(list),
        _ => PingTarget::Session,
    };
    Command::Ping {
        target,
        timeout_s: args.timeout,
    }
}

fn update_group_command(args: UpdateGroup) -> Result<Command> {
    let update = match (args.clean, args.remove) {
        (Some(word), _) => {
            let states = NodeState::parse(&word);
            GroupUpdate::Clean(states.with_context(|| {
                format!("'{word}' is not a state: active, busy, down, unknown or invalid")
            })?)
        }
        (_, Some(list)) => GroupUpdate::Remove(list),
        _ => GroupUpdate::Refresh,
    };
    Ok(Command::UpdateGroup {
        name: args.name,
        update,
    })
}

fn test_request(args: AddTest) -> Result<TestRequest> {
    let ratio = args
        .distribute
        .split_once(':')
        .and_then(|(n, m)| Some((n.parse().ok()?, m.parse().ok()?)));
    let (dist, span) = ratio.with_context(|| {
        format!(
            "'{}' is not a distribution such as 1:1, 1:4 or 4:2",
            args.distribute
        )
    })?;
    Ok(TestRequest {
        batch: args.batch,
        loops: args.loops,
        concurrency: args.concurrency,
        dist,
        span,
        from: args.from,
        to: args.to,
        kind: parse_test(&args.test).map_err(anyhow::Error::msg)?,
    })
}

fn query(args: &LstQuery) -> Result<ExitCode> {
    let console = console()?;
    let verbose = args.all || args.active || args.idle || args.error;
    let filter = QueryFilter {
        active: args.active,
        idle: args.idle,
        error: args.error,
    };
    let mut code = ExitCode::SUCCESS;
    for i in 0..args.loops {
        if i > 0 {
            std::thread::sleep(Duration::from_secs(args.delay));
        }
        let command = Command::Query {
            name: args.name.clone(),
            test: args.test,
            server: args.server,
            timeout_s: args.timeout,
            verbose: verbose.then_some(filter),
        };
        code = print_output(&ask(&console, command)?);
    }
    Ok(code)
}

/// Shows the rates between consecutive samples of the counters.
fn stat(args: &LstStat) -> Result<ExitCode> {
    let console = console()?;
    let sample = || -> Result<Vec<GroupCounts>> {
        let request = Request::LstCounts {
            names: args.names.clone(),
            timeout_s: args.timeout,
        };
        let answer = control::call(&console.control, &request, ANSWER_MAX)?;
        serde_json::from_value(answer).context("cannot decode the console's answer")
    };
    let filter = RatesFilter {
        bw: args.bw,
        rate: args.rate,
        read: args.read,
        write: args.write,
        avg: args.avg,
        min: args.min,
        max: args.max,
        mbs: args.mbs,
    };
    let mut before = sample()?;
    let mut lines_left = args.count;
    while lines_left != Some(0) {
        std::thread::sleep(Duration::from_secs(args.delay));
        let now = sample()?;
        for (earlier, later) in before.iter().zip(&now) {
            output::write(format_args!("{}", Rates::between(earlier, later).show(filter)));
        }
        before = now;
        lines_left = lines_left.map(|n| n - 1);
    }
    Ok(ExitCode::SUCCESS)
}
