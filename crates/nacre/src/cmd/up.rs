//! `nacre up`: a complete file system and its mount in one process.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use node::MGS_WAIT;
use osd::Space;
use osd::target::TargetDir;
use wire::OstIndex;

use super::{clean_up_after, dir_or_default, request_mount};
use crate::cli::Up;
use crate::instance::{self, Instance, InstanceOptions, Store};
use crate::lifecycle::{AfterStart, DaemonSpec, log_in};
use crate::mount_options::MountFlags;
use crate::net::{self, AddressPreference};
use crate::output::{outln, shell_word};
use crate::process::{self, ProcessRecord};
use crate::process_node::{LocalTarget, MountRequest, ProcessNode, memory_store_bytes};
use crate::start::StartConfig;
use crate::{daemon, mounts};

/// Space for the stores of a new file system, MiB.
const NEW_STORES_MIB: u64 = 8;

/// Runs the command.
pub(crate) fn run(args: Up) -> Result<ExitCode> {
    let start_time = Instant::now();
    let dir = dir_or_default(args.dir.as_deref())?;
    let flags = MountFlags::parse(&args.options)?;
    if !daemon::is_child() {
        MountFlags::print_notes(&args.options);
    }
    if let Some(nid) = flags.listen {
        bail!("mount option 'listen' sets the address of a mount without servers: use --listen {nid}");
    }
    let mountpoint = match (&args.mount, args.no_mount) {
        (_, true) => None,
        (Some(path), _) => Some(daemon::make_absolute(path)?),
        (None, _) => Some(dir.join("mnt")),
    };
    let instance_options = InstanceOptions {
        fsname: args.fsname.as_deref(),
        store: args.store,
        mdts: args.mdts,
        osts: args.osts,
    };
    // The parent has checked for a running process; its background child need not do so again.
    if !daemon::is_child()
        && let Some(process) = running_process(&dir)?
    {
        return flags.apply_nofail(mount_running_instance(
            &process,
            &dir,
            &instance_options,
            mountpoint.as_deref(),
            args.options,
        ));
    }
    let instance = Instance::plan(&dir, &instance_options)?;
    let start = StartConfig::new(&args.start, &instance.start)?;
    let preference = AddressPreference {
        preferred: instance.last_nid(),
        ..AddressPreference::default()
    };
    if !daemon::is_child() {
        net::server_endpoint(&args.net, &start.lnet, &preference)?;
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        match (instance.store, Instance::exists_in(&dir)) {
            (Store::Memory, _) => {}
            (Store::Local, true) => Space::of_host(&dir)?.check_start(&dir)?,
            (Store::Local, false) => check_space(&dir, instance.osts)?,
        }
        if let Some(path) = &mountpoint {
            mounts::prepare_empty(path)?;
        }
    }
    let spec = DaemonSpec {
        takes_over: false,
        role: "up",
        dirs: vec![dir.clone()],
        log: log_in(&dir),
        foreground: args.foreground,
        start: start.clone(),
    };
    let outcome = spec.run(async move |cpts| {
        let choose = || net::server_endpoint(&args.net, &start.lnet, &preference);
        let mut node = ProcessNode::start(cpts, &start, args.net.listen.is_none(), choose).await?;
        let instance = instance
            .with_nid(node.endpoint().nid)
            .with_start_params(start.settings());
        let metrics_addr = args.metrics.metrics.as_deref();
        let full = match bring_up(&mut node, &instance, &dir, metrics_addr).await {
            Ok(full) => full,
            Err(e) => {
                let _ = node.stop().await;
                return Err(e);
            }
        };
        let (nids, port) = (join_nids(&node.nids()), node.port());
        let mount = mountpoint.clone().map(|mountpoint| MountRequest {
            source: format!("{nids}:/{}", instance.fsname),
            mountpoint,
            options: args.options.clone(),
        });
        let metrics = node.metrics_line();
        let ready_text = move || {
            let text = summary(&instance, &dir, mountpoint.as_deref(), &nids, port, start_time);
            Some(text + &metrics + &full_warning(&full))
        };
        Ok((
            node,
            AfterStart {
                standby: None,
                mount,
                ready_text: Box::new(ready_text),
            },
        ))
    });
    flags.apply_nofail(outcome)
}

/// Creates missing targets, starts all targets, and waits until the MDT can create files. Returns
/// the OSTs that are too full for new files.
async fn bring_up(
    node: &mut ProcessNode,
    instance: &Instance,
    dir: &Path,
    metrics_addr: Option<&str>,
) -> Result<Vec<OstIndex>> {
    if let Some(addr) = metrics_addr {
        node.serve_metrics(addr).await?;
    }
    instance::restrict(dir)?;
    let dirs = instance.create_missing(dir)?;
    let mut targets = Vec::new();
    for (path, (kind, index)) in dirs.iter().zip(instance.targets()) {
        targets.push(match instance.store {
            Store::Local => LocalTarget::Dir(TargetDir::open(path)?),
            Store::Memory => {
                let label = super::mkfs::new_label(kind, &instance.fsname, index)?;
                LocalTarget::Memory(label, memory_store_bytes(kind, (instance.mdts, instance.osts)))
            }
        });
    }
    node.serve(targets, MGS_WAIT).await?;
    node.wait_until_ready().await
}

/// Fails if the disk of a new file system has too little space for new files: its OSTs keep a part
/// of the disk free.
fn check_space(dir: &Path, osts: u32) -> Result<()> {
    let reserved = Space::of_host(dir)?.reserved_bytes() >> 20;
    let s =
        rustix::fs::statvfs(dir).with_context(|| format!("cannot measure the disk of {}", dir.display()))?;
    let mib = |blocks: u64| blocks.saturating_mul(s.f_frsize) >> 20;
    // An OST is full below a thousandth of its disk and 1 MiB (`osp.*.reserved_mb_low`).
    let needed = reserved + mib(s.f_blocks) / 1000 + u64::from(osts) + NEW_STORES_MIB;
    let free = mib(s.f_bavail);
    if free < needed {
        bail!(
            "the disk of {} has {free} MiB free, and Nacre keeps {reserved} MiB of it free: free {} MiB more, or choose another \
             --dir",
            dir.display(),
            needed - free
        );
    }
    Ok(())
}

/// A line about the OSTs that are too full for new files; empty if there are none.
fn full_warning(full: &[OstIndex]) -> String {
    let names: Vec<String> = full.iter().map(|index| format!("OST{:04x}", index.0)).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(
            "\n  too full for new files: {}: remove files, or free space on the disk",
            names.join(", ")
        ),
    }
}

/// The process that is running in the directory, if any; cleans up after a dead one.
fn running_process(dir: &Path) -> Result<Option<ProcessRecord>> {
    let Some(record) = process::in_dir(dir)? else {
        return Ok(None);
    };
    if record.is_up() {
        return Ok(Some(record));
    }
    for line in clean_up_after(&record)? {
        outln!("process {} had died: {line}", record.pid);
    }
    Ok(None)
}

/// Mounts a running file system if it is not mounted yet. Fails if the options would change the
/// file system.
fn mount_running_instance(
    process: &ProcessRecord,
    dir: &Path,
    instance_options: &InstanceOptions,
    mountpoint: Option<&Path>,
    options: Vec<String>,
) -> Result<ExitCode> {
    let (here, pid) = (dir.display(), process.pid);
    if process.role != "up" {
        bail!(
            "{here} is served by nacre {} (process {pid}): see `nacre status`",
            process.role
        );
    }
    let instance = Instance::find(dir)?.with_context(|| {
        format!(
            "{here} was removed, but process {pid} still serves it: stop it with nacre down --dir {}",
            shell_word(dir)
        )
    })?;
    let has_changes = Instance::plan(dir, instance_options)? != instance;
    if has_changes {
        bail!(
            "{here} is up already (process {pid}) and cannot be changed while it runs: stop it with `nacre down`"
        );
    }
    let has_mount = |path: &Path| {
        let real = fuse::real_path(path).unwrap_or_else(|_| path.to_path_buf());
        process.mounts.iter().any(|m| m.mountpoint == real)
            && fuse::mounted_at(&real).is_some_and(|m| m.is_nacre())
    };
    let Some(mountpoint) = mountpoint.filter(|path| !has_mount(path)) else {
        let mounted = mountpoint.map_or(String::new(), |path| format!(", mounted on {}", path.display()));
        outln!("{} is up already (process {pid}){mounted}", instance.fsname);
        return Ok(ExitCode::SUCCESS);
    };
    mounts::prepare_empty(mountpoint)?;
    let request = MountRequest {
        source: format!("{}:/{}", process.nids.join(","), instance.fsname),
        mountpoint: mountpoint.to_path_buf(),
        options,
    };
    if !request_mount(process, request, Vec::new())? {
        bail!("process {pid} is stopping: try again");
    }
    outln!(
        "{} is up already (process {pid}), now mounted on {}",
        instance.fsname,
        mountpoint.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn join_nids(nids: &[wire::Nid]) -> String {
    let nids: Vec<String> = nids.iter().map(|n| n.to_string()).collect();
    nids.join(",")
}

fn summary(
    instance: &Instance,
    dir: &Path,
    mountpoint: Option<&Path>,
    nids: &str,
    port: u16,
    start_time: Instant,
) -> String {
    let mount_state = mountpoint.map_or_else(
        || "not mounted".to_owned(),
        |m| format!("mounted on {}", m.display()),
    );
    let source = match mountpoint {
        Some(_) => String::new(),
        None => format!("\n  source for mounts and programs: {nids}:/{}", instance.fsname),
    };
    format!(
        "{fs} is up, {mount_state} ({ms} ms)\n  {mdts} MDT{s_mdts} and {osts} OST{s} in {dir}, MGS at {nids} port {port}{source}\n  stop it with: nacre down --dir {dir_word}",
        fs = instance.fsname,
        ms = start_time.elapsed().as_millis(),
        mdts = instance.mdts,
        s_mdts = if instance.mdts == 1 { "" } else { "s" },
        osts = instance.osts,
        s = if instance.osts == 1 { "" } else { "s" },
        dir = dir.display(),
        dir_word = shell_word(dir),
    )
}
