//! `nacre serve`: runs the targets in the given directories.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use osd::target::TargetKind;

use crate::cli::Serve;
use crate::daemon;
use crate::lifecycle::{DaemonSpec, log_in};
use crate::net::{self, AddressPreference};
use crate::node::{LocalTarget, Node, open_dirs};
use crate::registration;
use crate::start::StartConfig;

/// Runs the command.
pub(crate) fn run(args: Serve) -> Result<ExitCode> {
    let start = StartConfig::new(&args.start, &[])?;
    let dirs = args
        .dirs
        .iter()
        .map(|d| daemon::absolute(d))
        .collect::<Result<Vec<_>>>()?;
    // Open them before starting the background process: errors appear on the terminal, and no log
    // is created in a wrong directory.
    let opened = open_dirs(&dirs)?;
    let log = log_in(opened[0].path());
    // Keep the addresses of the MGS free for an MGS that starts later.
    let with_mgs = opened.iter().any(|d| d.label().kind == TargetKind::Mgs);
    let mgsnodes = opened.iter().flat_map(|d| d.label().mgsnode.clone());
    let preference = AddressPreference {
        required: opened
            .iter()
            .find_map(|d| d.label().service_nodes.first().copied()),
        reserved: if with_mgs { Vec::new() } else { mgsnodes.collect() },
        ..AddressPreference::default()
    };
    // In the background, the child process holds the locks on the directories.
    let hold = (args.foreground || daemon::is_child()).then_some(opened);
    let session = DaemonSpec {
        role: "serve",
        dirs,
        log,
        foreground: args.foreground,
        start: start.clone(),
    };
    session.run(async move |cpts| {
        let choose = || net::for_server(&args.net, &start.lnet, &preference);
        let chosen_freely = args.net.listen.or(preference.required).is_none();
        let mut node = Node::start(cpts, &start, chosen_freely, choose).await?;
        let targets = hold
            .unwrap_or_default()
            .into_iter()
            .map(LocalTarget::Dir)
            .collect();
        let wait = args.wait.map_or(registration::MGS_WAIT, Duration::from_secs);
        if let Err(e) = node.serve_all(targets, wait).await {
            let _ = node.stop().await;
            return Err(e);
        }
        let place = node.place();
        let said = format!(
            "serving {} at {} port {}",
            node.target_names().join(" "),
            place.nid,
            place.port
        );
        Ok((node, said))
    })
}
