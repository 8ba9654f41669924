//! `nacre mount`: mounts a file system.
//!
//! One address is one LNet node: if a process of this user has the address already, that process
//! mounts ([`delegate`]); otherwise the mount gets its own process.

mod delegate;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use client::parse_source;
use wire::Nid;

use crate::cli::Mount;
use crate::lifecycle::{self, AfterStart, DaemonSpec};
use crate::mount_options::MountFlags;
use crate::node::{MountRequest, Node};
use crate::output::outln;
use crate::start::StartConfig;
use crate::{daemon, mounts, net, process};

/// Runs the command.
pub(crate) fn run(args: Mount) -> Result<ExitCode> {
    let start = StartConfig::new(&args.start, &[])?;
    let mgs = parse_source(&args.source)?.mgs;
    let flags = MountFlags::parse(&args.options)?;
    let mountpoint = daemon::absolute(&args.mountpoint)?;
    if flags.remount {
        return remount(&mountpoint, &flags);
    }
    let request = MountRequest {
        source: args.source.clone(),
        mountpoint: mountpoint.clone(),
        options: args.options.clone(),
    };
    if !daemon::is_child() {
        mounts::check_responsive(&mountpoint)?;
        if !mountpoint.is_dir() {
            bail!(
                "mount point {} is not a directory: create it first",
                mountpoint.display()
            );
        }
    }
    flags.apply_nofail(mount(&args, &start, &mgs, &request))
}

/// Changes the flags of a mount, as `mount -o remount` does.
fn remount(mountpoint: &Path, flags: &MountFlags) -> Result<ExitCode> {
    mounts::check_responsive(mountpoint)?;
    fuse::remount(&fuse::real_path(mountpoint)?, flags.kernel())
        .with_context(|| format!("cannot remount {}", mountpoint.display()))?;
    outln!("{} is now mounted with the new options", mountpoint.display());
    Ok(ExitCode::SUCCESS)
}

/// Mounts in the process that has the address, or in a new process.
fn mount(args: &Mount, start: &StartConfig, mgs: &[Nid], request: &MountRequest) -> Result<ExitCode> {
    let mountpoint = &request.mountpoint;
    let own = || mount_in_own_process(args, start, mgs, request.clone());
    if daemon::is_child() || args.foreground {
        if args.foreground {
            mounts::prepare(mountpoint)?;
        }
        return own();
    }
    let said = |pid| {
        outln!(
            "{} is mounted on {} (by process {pid}, which uses this address)",
            args.source,
            mountpoint.display()
        );
        Ok(ExitCode::SUCCESS)
    };
    let taken = || match net::check_client(&args.net, &start.lnet, mgs)? {
        Some(taken) => delegate::check_user(&taken).map(|()| Some(taken)),
        None => Ok(None),
    };
    loop {
        let other = taken()?;
        mounts::prepare(mountpoint)?;
        if let Some(taken) = other {
            if let Some(pid) = delegate::mount(&taken, request, &start.settings())? {
                return said(pid);
            }
            continue;
        }
        let failed = match own() {
            Err(e) => e,
            done => return done,
        };
        // A concurrent mount may have taken the address first.
        match taken() {
            Ok(Some(_)) => {}
            _ => return Err(failed),
        }
    }
}

/// Mounts in a new process, in the foreground or in the background.
fn mount_in_own_process(
    args: &Mount,
    start: &StartConfig,
    mgs: &[Nid],
    request: MountRequest,
) -> Result<ExitCode> {
    let log = process::run_dir()?.join(log_name(&request.mountpoint));
    let session = DaemonSpec {
        role: lifecycle::MOUNT,
        dirs: Vec::new(),
        log,
        foreground: args.foreground,
        start: start.clone(),
    };
    session.run(async move |cpts| {
        let choose = || net::for_client(&args.net, &start.lnet, mgs);
        let node = Node::start(cpts, start, args.net.listen.is_none(), choose).await?;
        let said = format!(
            "{} is mounted on {}",
            request.source,
            request.mountpoint.display()
        );
        let then = AfterStart {
            mount: Some(request),
            ..AfterStart::from(said)
        };
        Ok((node, then))
    })
}

/// The name of the log of a mount, from its mount point.
fn log_name(mountpoint: &Path) -> String {
    let name: String = mountpoint
        .to_string_lossy()
        .trim_start_matches('/')
        .replace('/', "-");
    // Keep the end of the path within the limit for file names.
    let tail: Vec<char> = name.chars().rev().take(60).collect();
    format!("mount-{}.log", tail.into_iter().rev().collect::<String>())
}
