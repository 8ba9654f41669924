//! `nacre up`: a complete file system and its mount in one process.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use osd::target::TargetDir;

use super::{clean_up_after, dir_or_default, mount_in};
use crate::cli::Up;
use crate::instance::{self, Instance, Store, Wanted};
use crate::mount_options::MountFlags;
use crate::net::{self, Expected};
use crate::node::{Here, MountRequest, Node, memory_of};
use crate::output::say;
use crate::running::{self, Running};
use crate::session::{Session, Then, log_in};
use crate::start::Start;
use crate::{daemon, joining, mounts};

/// Runs the command.
pub(crate) fn run(args: Up) -> Result<ExitCode> {
    let begun = Instant::now();
    let dir = dir_or_default(args.dir.as_deref())?;
    let flags = MountFlags::parse(&args.options)?;
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
    // The background child repeats only the checks whose result may have changed since its parent
    // made them.
    if !daemon::is_child()
        && let Some(process) = not_up_already(&dir)?
    {
        return flags.outcome(mount_again(
            &process,
            &dir,
            &wanted,
            mountpoint.as_deref(),
            args.options,
        ));
    }
    let instance = Instance::plan(&dir, &wanted)?;
    let start = Start::new(&args.start, &instance.start)?;
    let expected = Expected {
        rather: instance.last_nid(),
        ..Expected::default()
    };
    if !daemon::is_child() {
        net::for_server(&args.net, &start.lnet, &expected)?;
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
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
    let ended = session.run(async move |cpts| {
        let choose = || net::for_server(&args.net, &start.lnet, &expected);
        let mut node = Node::start(cpts, &start, args.net.listen.is_none(), choose).await?;
        let instance = instance.now_at(node.place().nid).started_with(start.told());
        let brought = bring_up(&mut node, &instance, &dir).await;
        if let Err(e) = brought {
            let _ = node.stop().await;
            return Err(e);
        }
        let (nids, port) = (join(&node.nids()), node.port());
        let mount = mountpoint.clone().map(|mountpoint| MountRequest {
            source: format!("{nids}:/{}", instance.fsname),
            mountpoint,
            options: args.options.clone(),
        });
        let said = move || summary(&instance, &dir, mountpoint.as_deref(), &nids, port, begun);
        Ok((
            node,
            Then {
                mount,
                said: Box::new(said),
            },
        ))
    });
    flags.outcome(ended)
}

async fn bring_up(node: &mut Node, instance: &Instance, dir: &Path) -> Result<()> {
    instance::restrict(dir)?;
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
    node.serve_all(targets, joining::WAIT).await?;
    node.ready().await
}

/// The process that is running in the directory, if any; cleans up after a dead one.
fn not_up_already(dir: &Path) -> Result<Option<Running>> {
    let Some(r) = running::in_dir(dir)? else {
        return Ok(None);
    };
    if r.up() {
        return Ok(Some(r));
    }
    for line in clean_up_after(&r)? {
        say!("process {} had died: {line}", r.pid);
    }
    Ok(None)
}

/// Mounts a running file system that is not mounted yet; fails for any other change.
fn mount_again(
    process: &Running,
    dir: &Path,
    wanted: &Wanted,
    mountpoint: Option<&Path>,
    options: Vec<String>,
) -> Result<ExitCode> {
    let (here, pid) = (dir.display(), process.pid);
    let unmounted = mountpoint.filter(|path| {
        let real = fuse::real_path(path).unwrap_or_else(|_| path.to_path_buf());
        !fuse::mounted_at(&real).is_some_and(|m| m.is_nacre())
    });
    let Some(mountpoint) = unmounted.filter(|_| process.role == "up") else {
        bail!("{here} is up already (process {pid}): see `nacre status`; stop it with `nacre down`");
    };
    let instance = Instance::find(dir)?.with_context(|| {
        format!("{here} was removed, but process {pid} still serves it: stop it with nacre down --dir {here}")
    })?;
    let other = Instance::plan(dir, wanted)? != instance;
    if other {
        bail!(
            "{here} is up already (process {pid}) and cannot be changed while it runs: stop it with `nacre down`"
        );
    }
    mounts::prepare(mountpoint)?;
    let request = MountRequest {
        source: format!("{}:/{}", process.nids.join(","), instance.fsname),
        mountpoint: mountpoint.to_path_buf(),
        options,
    };
    if !mount_in(process, request, Vec::new())? {
        bail!("process {pid} is stopping: try again");
    }
    say!(
        "{} is up already (process {pid}), now mounted on {}",
        instance.fsname,
        mountpoint.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn join(nids: &[wire::Nid]) -> String {
    let nids: Vec<String> = nids.iter().map(|n| n.to_string()).collect();
    nids.join(",")
}

fn summary(
    instance: &Instance,
    dir: &Path,
    mountpoint: Option<&Path>,
    nids: &str,
    port: u16,
    begun: Instant,
) -> String {
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
        mgs = nids,
    )
}
