//! `nacre mount`: mounts a file system that is served elsewhere.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use client::{Atime, parse_source};

use crate::cli::Mount;
use crate::node::{MountFlags, Node};
use crate::session::Session;
use crate::start::Start;
use crate::{daemon, mounts, net, running};

/// Runs the command.
pub(crate) fn run(args: Mount) -> Result<ExitCode> {
    let start = Start::new(&args.start, &[])?;
    let (mgs, fsname) = parse_source(&args.source)?;
    let flags = parse_options(&args.options)?;
    let mountpoint = daemon::absolute(&args.mountpoint)?;
    if !daemon::is_child() {
        mounts::answers(&mountpoint)?;
        if !mountpoint.is_dir() {
            bail!(
                "mount point {} is not a directory: make it first",
                mountpoint.display()
            );
        }
        mounts::prepare(&mountpoint)?;
        net::for_client(&args.net, &start.lnet, &mgs)?;
    }
    let log = running::run_dir()?.join(log_name(&mountpoint));
    let session = Session {
        role: "mount",
        dirs: Vec::new(),
        log,
        foreground: args.foreground,
        start: start.clone(),
    };
    session.run(async move |cpts| {
        let choose = || net::for_client(&args.net, &start.lnet, &mgs);
        let mut node = Node::start(cpts, &start, args.net.listen.is_none(), choose).await?;
        if let Err(e) = node.mount(&mgs, &fsname, &mountpoint, &flags).await {
            let _ = node.stop(true).await;
            return Err(e);
        }
        Ok((
            node,
            format!("{} is mounted on {}", args.source, mountpoint.display()),
        ))
    })
}

/// Options of mount.lustre: those that change something here, and those that are always so.
fn parse_options(options: &[String]) -> Result<MountFlags> {
    let mut flags = MountFlags::default();
    for option in options {
        if let Some(atime) = Atime::from_option(option) {
            flags.atime = atime;
            continue;
        }
        match option.as_str() {
            "ro" => flags.read_only = true,
            "rw" => flags.read_only = false,
            "diratime" => flags.no_diratime = false,
            "nodiratime" => flags.no_diratime = true,
            "flock" | "user_xattr" | "acl" | "defaults" | "_netdev" => {}
            other => bail!(
                "mount option '{other}' is not known: use ro, rw, relatime, strictatime, noatime or nodiratime"
            ),
        }
    }
    Ok(flags)
}

/// One log for each mount point.
fn log_name(mountpoint: &Path) -> String {
    let name: String = mountpoint
        .to_string_lossy()
        .trim_start_matches('/')
        .replace('/', "-");
    // Not longer than a file's name may be.
    let tail: Vec<char> = name.chars().rev().take(60).collect();
    format!("mount-{}.log", tail.into_iter().rev().collect::<String>())
}
