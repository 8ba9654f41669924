//! `nacre serve`: runs the targets in some directories.

use std::process::ExitCode;

use anyhow::Result;
use osd::target::{TargetDir, TargetKind};
use wire::Nid;

use crate::cli::Serve;
use crate::node::{Node, open_dirs};
use crate::session::{Session, log_in};
use crate::{daemon, net};

/// Runs the command.
pub(crate) fn run(args: Serve) -> Result<ExitCode> {
    let dirs = args
        .dirs
        .iter()
        .map(|d| daemon::absolute(d))
        .collect::<Result<Vec<_>>>()?;
    // Refused here, so that the error is the command's own and no log is made in a wrong directory.
    let opened = open_dirs(&dirs)?;
    let log = log_in(opened[0].path());
    let service_node: Option<Nid> = opened
        .iter()
        .find_map(|d| d.label().service_nodes.first().copied());
    // An MGS that is started later wants the address that this target's label says.
    let with_mgs = opened.iter().any(|d| d.label().kind == TargetKind::Mgs);
    let mgsnodes = opened.iter().flat_map(|d| d.label().mgsnode.clone());
    let elsewhere: Vec<Nid> = if with_mgs { Vec::new() } else { mgsnodes.collect() };
    let hold = (args.foreground || daemon::is_child()).then_some(opened);
    let session = Session {
        role: "serve",
        dirs,
        log,
        foreground: args.foreground,
    };
    session.run(async move |cpts| {
        let place = net::for_server(&args.net, service_node, &elsewhere)?;
        let mut node = Node::start(cpts, place).await?;
        if let Err(e) = bring_up(&mut node, hold.unwrap_or_default()).await {
            let _ = node.stop(true).await;
            return Err(e);
        }
        let said = format!(
            "serving {} at {} port {}",
            node.target_names().join(" "),
            place.nid,
            place.port
        );
        Ok((node, said))
    })
}

async fn bring_up(node: &mut Node, dirs: Vec<TargetDir>) -> Result<()> {
    node.open_portals(dirs.iter().map(|d| d.label().kind))?;
    for dir in dirs {
        node.serve_dir(dir).await?;
    }
    Ok(())
}
