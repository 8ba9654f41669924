//! `nacre serve`: runs the targets in the given directories.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use osd::target::TargetKind;

use crate::cli::Serve;
use crate::daemon;
use crate::joining;
use crate::net::{self, Expected};
use crate::node::{Here, Node, open_dirs};
use crate::session::{Session, log_in};
use crate::start::Start;

/// Runs the command.
pub(crate) fn run(args: Serve) -> Result<ExitCode> {
    let start = Start::new(&args.start, &[])?;
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
    let expected = Expected {
        at: opened
            .iter()
            .find_map(|d| d.label().service_nodes.first().copied()),
        not: if with_mgs { Vec::new() } else { mgsnodes.collect() },
        ..Expected::default()
    };
    // In the background, the child process holds the locks on the directories.
    let hold = (args.foreground || daemon::is_child()).then_some(opened);
    let session = Session {
        role: "serve",
        dirs,
        log,
        foreground: args.foreground,
        start: start.clone(),
    };
    session.run(async move |cpts| {
        let choose = || net::for_server(&args.net, &start.lnet, &expected);
        let chosen_freely = args.net.listen.or(expected.at).is_none();
        let mut node = Node::start(cpts, &start, chosen_freely, choose).await?;
        let targets = hold.unwrap_or_default().into_iter().map(Here::Dir).collect();
        let wait = args.wait.map_or(joining::WAIT, Duration::from_secs);
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
