//! `nacre serve`: runs the targets in the given directories.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use node::MGS_WAIT;
use osd::target::{TargetDir, TargetKind, TargetLabel};
use wire::Nid;

use crate::cli::Serve;
use crate::lifecycle::{AfterStart, DaemonSpec, log_in};
use crate::net::{self, AddressPreference};
use crate::process_node::{LocalTarget, ProcessNode, open_dirs};
use crate::standby::{self, Standby};
use crate::start::StartConfig;
use crate::{daemon, process};

/// The file in a target's directory with the address at which the target was served last.
pub(super) const ADDRESS_FILE: &str = "address";

/// Runs the command.
pub(crate) fn run(args: Serve) -> Result<ExitCode> {
    let start = StartConfig::new(&args.start, &[])?;
    let dirs = args
        .dirs
        .iter()
        .map(|d| daemon::make_absolute(d))
        .collect::<Result<Vec<_>>>()?;
    // Open the directories before starting the background process: errors appear on the terminal,
    // and no log is created in a wrong directory.
    // The process that serves holds the locks on the directories: the background child, if any.
    let is_server = args.foreground || daemon::is_child();
    let target_dirs = match (args.standby, args.takeover) {
        (true, _) => Vec::new(),
        (false, true) if is_server => standby::take_over_now(&dirs)?,
        (false, true) => {
            dirs.iter().try_for_each(|dir| TargetDir::check_take_over(dir))?;
            Vec::new()
        }
        (false, false) => open_dirs(&dirs)?,
    };
    let labels = dirs
        .iter()
        .map(|dir| Ok(TargetLabel::read(dir)?))
        .collect::<Result<Vec<_>>>()?;
    if args.standby {
        check_standby(&labels)?;
    }
    let runs_mgs = labels.iter().any(|label| label.kind == TargetKind::Mgs);
    let service_nodes =
        |label: &TargetLabel| Some(label.service_nodes.clone()).filter(|nodes| !nodes.is_empty());
    let preference = AddressPreference {
        required: labels.iter().find_map(service_nodes).unwrap_or_default(),
        preferred: dirs.iter().find_map(|dir| last_address(dir)),
        mgs: labels.iter().flat_map(|label| label.mgsnode.clone()).collect(),
        runs_mgs,
    };
    let own_targets = is_server.then_some(target_dirs);
    let (last, own_dirs) = (preference.preferred, dirs.clone());
    let standby = args.standby.then(|| Standby {
        dirs: dirs.clone(),
        force_after: Some(Duration::from_secs(args.standby_timeout)).filter(|limit| !limit.is_zero()),
    });
    let spec = DaemonSpec {
        takes_over: args.takeover,
        role: "serve",
        log: match args.standby {
            // The directories belong to the other server.
            true => standby_log(&dirs[0]),
            false => log_in(&dirs[0]),
        },
        dirs: if args.standby { Vec::new() } else { dirs },
        foreground: args.foreground,
        start: start.clone(),
    };
    spec.run(async move |cpts| {
        let choose = || net::server_endpoint(&args.net, &start.lnet, &preference);
        let retry_if_taken = args.net.listen.is_none() && preference.required.is_empty();
        let mut node = ProcessNode::start(cpts, &start, retry_if_taken, choose).await?;
        let targets = own_targets
            .unwrap_or_default()
            .into_iter()
            .map(LocalTarget::Dir)
            .collect();
        let wait = args.wait.map_or(MGS_WAIT, Duration::from_secs);
        if let Some(standby) = standby {
            let endpoint = node.endpoint();
            node.open_portals(labels.iter().map(|label| label.kind))?;
            let names: Vec<String> = labels.iter().map(TargetLabel::svname).collect();
            let text = format!(
                "standing by for {} at {} port {}",
                names.join(" "),
                endpoint.nid,
                endpoint.port
            );
            return Ok((
                node,
                AfterStart {
                    standby: Some((standby, wait)),
                    ..AfterStart::from(text)
                },
            ));
        }
        let started = async {
            if let Some(addr) = &args.metrics.metrics {
                node.serve_metrics(addr).await?;
            }
            node.serve(targets, wait).await
        };
        if let Err(e) = started.await {
            let _ = node.stop().await;
            return Err(e);
        }
        let endpoint = node.endpoint();
        for dir in &own_dirs {
            process::write_atomically(&dir.join(ADDRESS_FILE), &endpoint.nid.to_string())?;
        }
        let scope = match retry_if_taken && runs_mgs && endpoint.nid.addr().is_loopback() {
            true => " (only for this host: for other hosts use --listen ADDRESS)",
            false => "",
        };
        let moved = match last.filter(|last| *last != endpoint.nid) {
            Some(last) => format!("\n  until now at {last}, where other nodes may still expect it"),
            None => String::new(),
        };
        let text = format!(
            "serving {} at {} port {}{scope}{moved}{}",
            node.target_names().join(" "),
            endpoint.nid,
            endpoint.port,
            node.metrics_line()
        );
        Ok((node, AfterStart::from(text)))
    })
}

/// Fails if a standby could not take over one of the targets by force, because it has at most one
/// service node.
fn check_standby(labels: &[TargetLabel]) -> Result<()> {
    if let Some(label) = labels.iter().find(|label| !label.has_several_nodes()) {
        bail!(
            "{} has no list of service nodes: name all nodes that may serve it with `nacre mkfs --servicenode`, or in 'service_nodes' of the file 'target', and restart its server",
            label.svname()
        );
    }
    Ok(())
}

/// The log of a standby server on this host.
fn standby_log(dir: &Path) -> PathBuf {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    dir.join(format!("nacre.standby-{host}-{}.log", std::process::id()))
}

/// The address at which the target in a directory was served last. Without `--listen`, the server
/// prefers this address, because other nodes know the target by it.
fn last_address(dir: &Path) -> Option<Nid> {
    let text = std::fs::read_to_string(dir.join(ADDRESS_FILE)).ok()?;
    text.trim().parse().ok()
}
