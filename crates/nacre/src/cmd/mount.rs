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
use crate::output::{errln, outln, shell_word};
use crate::process_node::{MountRequest, ProcessNode};
use crate::start::StartConfig;
use crate::{daemon, mounts, net, process};

/// Number of characters from the end of a mount point that its log's name contains. Each has at
/// most 4 bytes, so they fit into a file name.
const LOG_NAME_CHARS: usize = 60;

/// Runs the command.
pub(crate) fn run(mut args: Mount) -> Result<ExitCode> {
    let start = StartConfig::new(&args.start, &[])?;
    if Path::new(&args.source).exists() {
        bail!(
            "{} is a path, not MGSNID:/FSNAME: to start the target in a directory use `nacre serve {}`",
            args.source,
            shell_word(Path::new(&args.source))
        );
    }
    let mgs = parse_source(&args.source)?.mgs;
    if args.sloppy {
        args.options = MountFlags::known_options(args.options);
    }
    let flags = MountFlags::parse(&args.options)?;
    if !daemon::is_child() {
        MountFlags::print_notes(&args.options);
    }
    args.net.listen = flags.listen.or(args.net.listen);
    let mountpoint = daemon::make_absolute(&args.mountpoint)?;
    if flags.remount {
        return remount(&mountpoint, &flags, args.quiet);
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
        if !args.quiet && mounts::has_files(&mountpoint) {
            errln!(
                "nacre: warning: {} is not empty: the mount hides its files",
                mountpoint.display()
            );
        }
    }
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    flags.apply_nofail(mount(&args, &start, &mgs, &request))
}

/// Changes the flags of a mount, as `mount -o remount` does.
fn remount(mountpoint: &Path, flags: &MountFlags, quiet: bool) -> Result<ExitCode> {
    mounts::check_responsive(mountpoint)?;
    fuse::remount(&fuse::real_path(mountpoint)?, flags.kernel_flags())
        .with_context(|| format!("cannot remount {}", mountpoint.display()))?;
    if !quiet {
        outln!("{} is now mounted with the new options", mountpoint.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Mounts in the process that has the address; otherwise in a new background process. With
/// `--foreground`, or as that background process, mounts in this process.
fn mount(args: &Mount, start: &StartConfig, mgs: &[Nid], request: &MountRequest) -> Result<ExitCode> {
    let mountpoint = &request.mountpoint;
    let mount_in_own = || mount_in_own_process(args, start, mgs, request.clone());
    if daemon::is_child() || args.foreground {
        if args.foreground {
            mounts::prepare(mountpoint)?;
        }
        return mount_in_own();
    }
    let report_success = |nid: Nid, pid: u32| {
        if !args.quiet {
            outln!(
                "{} is mounted on {} (by process {pid}, which uses the address {nid})",
                args.source,
                mountpoint.display()
            );
        }
        Ok(ExitCode::SUCCESS)
    };
    let find_address_user = || match net::client_address_in_use(&args.net, &start.lnet, mgs)? {
        Some(address) => delegate::check_user(&address).map(|()| Some(address)),
        None => Ok(None),
    };
    loop {
        let address_in_use = find_address_user()?;
        mounts::prepare(mountpoint)?;
        if let Some(address) = address_in_use {
            // The kernel lets only the process group of systemd's helper mount on such a point.
            if mounts::is_automount_point(mountpoint) {
                bail!(
                    "{} is an automount point, but another process has the address {} and would have to mount: use \
                     another address (listen=NID), or mount without automount",
                    mountpoint.display(),
                    address.nid
                );
            }
            if let Some(pid) = delegate::mount(&address, request, &start.settings())? {
                return report_success(address.nid, pid);
            }
            continue;
        }
        let error = match mount_in_own() {
            Err(e) => e,
            success => return success,
        };
        // A concurrent mount may have taken the address first: try again through its process.
        match find_address_user() {
            Ok(Some(_)) => {}
            _ => return Err(error),
        }
    }
}

/// Mounts in a new background process; in this process with `--foreground`, or if this process is
/// that background process.
fn mount_in_own_process(
    args: &Mount,
    start: &StartConfig,
    mgs: &[Nid],
    request: MountRequest,
) -> Result<ExitCode> {
    let log = process::run_dir()?.join(log_name(&request.mountpoint));
    let spec = DaemonSpec {
        takes_over: false,
        role: lifecycle::MOUNT_ROLE,
        dirs: Vec::new(),
        log,
        foreground: args.foreground,
        start: start.clone(),
    };
    spec.run(async move |cpts| {
        let choose = || net::client_endpoint(&args.net, &start.lnet, mgs);
        let node = ProcessNode::start(cpts, start, args.net.listen.is_none(), choose).await?;
        let text = format!(
            "{} is mounted on {}",
            request.source,
            request.mountpoint.display()
        );
        let quiet = args.quiet;
        let after_start = AfterStart {
            standby: None,
            mount: Some(request),
            ready_text: Box::new(move || (!quiet).then_some(text)),
        };
        Ok((node, after_start))
    })
}

/// The name of the log of a mount, from its mount point.
fn log_name(mountpoint: &Path) -> String {
    let name: String = mountpoint
        .to_string_lossy()
        .trim_start_matches('/')
        .replace('/', "-");
    let tail: Vec<char> = name.chars().rev().take(LOG_NAME_CHARS).collect();
    format!("mount-{}.log", tail.into_iter().rev().collect::<String>())
}
