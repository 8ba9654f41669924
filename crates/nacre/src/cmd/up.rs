//! `nacre up`: a whole file system and a mount of it, in one process.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use osd::target::TargetDir;

use super::{clean_up_after, dir_or_default};
use crate::cli::Up;
use crate::instance::{Instance, Store, Wanted};
use crate::net::{self, Expected};
use crate::node::{Here, MountFlags, Node, memory_of};
use crate::output::say;
use crate::session::{Session, log_in};
use crate::start::Start;
use crate::{daemon, mounts, running};

/// Runs the command.
pub(crate) fn run(args: Up) -> Result<ExitCode> {
    let begun = Instant::now();
    let dir = dir_or_default(args.dir.as_deref())?;
    let mountpoint = match (&args.mount, args.no_mount) {
        (_, true) => None,
        (Some(path), _) => Some(daemon::absolute(path)?),
        (None, _) => Some(dir.join("mnt")),
    };
    let wanted = Wanted {
        fsname: args.fsname.as_deref(),
        store: args.store,
        osts: args.osts,
    };
    // In the background all this has been looked at already, but the directory may have changed hands since.
    if !daemon::is_child() {
        not_up_already(&dir)?;
    }
    let instance = Instance::plan(&dir, &wanted)?;
    let start = Start::new(&args.start, &instance.start)?;
    let expected = Expected {
        rather: instance.last_nid(),
        ..Expected::default()
    };
    if !daemon::is_child() {
        net::for_server(&args.net, &start.lnet, &expected)?;
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        if let Some(path) = &mountpoint {
            mounts::prepare(path)?;
        }
    }
    let session = Session {
        role: "up",
        dirs: vec![dir.clone()],
        log: log_in(&dir),
        foreground: args.foreground,
        start: start.clone(),
    };
    session.run(async move |cpts| {
        let choose = || net::for_server(&args.net, &start.lnet, &expected);
        let mut node = Node::start(cpts, &start, args.net.listen.is_none(), choose).await?;
        let instance = instance.now_at(node.place().nid).started_with(start.told());
        let brought = bring_up(&mut node, &instance, &dir, mountpoint.as_deref()).await;
        if let Err(e) = brought {
            let _ = node.stop(true).await;
            return Err(e);
        }
        let said = summary(&node, &instance, &dir, mountpoint.as_deref(), begun);
        Ok((node, said))
    })
}

async fn bring_up(node: &mut Node, instance: &Instance, dir: &Path, mountpoint: Option<&Path>) -> Result<()> {
    let dirs = instance.make(dir)?;
    let mut targets = Vec::new();
    for (path, (kind, index)) in dirs.iter().zip(instance.targets()) {
        targets.push(match instance.store {
            Store::Local => Here::Dir(TargetDir::open(path)?),
            Store::Memory => {
                let label = super::mkfs::label(kind, &instance.fsname, index)?;
                Here::Memory(label, memory_of(kind, instance.osts))
            }
        });
    }
    node.serve_all(targets).await?;
    node.ready().await?;
    if let Some(path) = mountpoint {
        let here = node.nids();
        node.mount(&here, &instance.fsname, path, &MountFlags::default())
            .await?;
    }
    Ok(())
}

/// Refuses to start twice; cleans up after a process that died.
fn not_up_already(dir: &Path) -> Result<()> {
    let Some(r) = running::in_dir(dir)? else {
        return Ok(());
    };
    if r.up() {
        bail!(
            "{} is up already (process {}): `nacre status` shows it, `nacre down` stops it",
            dir.display(),
            r.pid
        );
    }
    for line in clean_up_after(&r)? {
        say!("process {} had died: {line}", r.pid);
    }
    Ok(())
}

fn summary(
    node: &Node,
    instance: &Instance,
    dir: &Path,
    mountpoint: Option<&Path>,
    begun: Instant,
) -> String {
    let nids: Vec<String> = node.nids().iter().map(|n| n.to_string()).collect();
    let place = mountpoint.map_or_else(
        || "not mounted".to_owned(),
        |m| format!("mounted on {}", m.display()),
    );
    format!(
        "{fs} is up, {place} ({ms} ms)\n  1 MDT and {osts} OST{s} in {dir}, MGS at {mgs} port {port}\n  stop it with: nacre down --dir {dir}",
        fs = instance.fsname,
        ms = begun.elapsed().as_millis(),
        osts = instance.osts,
        s = if instance.osts == 1 { "" } else { "s" },
        dir = dir.display(),
        mgs = nids.join(","),
        port = node.port(),
    )
}
