//! `nacre serve`: runs the targets in the given directories.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use node::MGS_WAIT;
use osd::target::TargetKind;
use wire::Nid;

use crate::cli::Serve;
use crate::lifecycle::{DaemonSpec, log_in};
use crate::net::{self, AddressPreference};
use crate::process_node::{LocalTarget, ProcessNode, open_dirs};
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
    let target_dirs = open_dirs(&dirs)?;
    let log = log_in(target_dirs[0].path());
    let runs_mgs = target_dirs.iter().any(|d| d.label().kind == TargetKind::Mgs);
    let mgs = target_dirs.iter().flat_map(|d| d.label().mgsnode.clone());
    let preference = AddressPreference {
        required: target_dirs
            .iter()
            .find_map(|d| d.label().service_nodes.first().copied()),
        preferred: target_dirs.iter().find_map(|d| last_address(d.path())),
        mgs: mgs.collect(),
        runs_mgs,
    };
    // The process that serves holds the locks on the directories: the background child, if any.
    let own_targets = (args.foreground || daemon::is_child()).then_some(target_dirs);
    let (last, own_dirs) = (preference.preferred, dirs.clone());
    let spec = DaemonSpec {
        role: "serve",
        dirs,
        log,
        foreground: args.foreground,
        start: start.clone(),
    };
    spec.run(async move |cpts| {
        let choose = || net::server_endpoint(&args.net, &start.lnet, &preference);
        let retry_if_taken = args.net.listen.or(preference.required).is_none();
        let mut node = ProcessNode::start(cpts, &start, retry_if_taken, choose).await?;
        let targets = own_targets
            .unwrap_or_default()
            .into_iter()
            .map(LocalTarget::Dir)
            .collect();
        let wait = args.wait.map_or(MGS_WAIT, Duration::from_secs);
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
        Ok((node, text))
    })
}

/// The address at which the target in a directory was served last. Without `--listen`, the server
/// prefers this address, because other nodes know the target by it.
fn last_address(dir: &Path) -> Option<Nid> {
    let text = std::fs::read_to_string(dir.join(ADDRESS_FILE)).ok()?;
    text.trim().parse().ok()
}
