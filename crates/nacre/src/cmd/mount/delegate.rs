//! Mounting through the running process that uses the address which the mount needs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lnet::endpoint::{free_addresses, try_listen};
use lnet::{AddressUser, LnetError, user_of};
use wire::Nid;

use crate::cmd::request_mount;
use crate::net::AddressInUse;
use crate::process::{self, ProcessRecord};
use crate::process_node::MountRequest;

/// Time limit for a process with an address to publish its record, or to exit.
const RECORD_WAIT_MAX: Duration = Duration::from_secs(60);
/// Time limit for an exiting process to release its port after its claim on the address.
const PORT_RELEASE_MAX: Duration = Duration::from_secs(1);
/// Interval between two attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Requests a mount in the process that uses the address. Returns its process id, or `None` if the
/// address has become free. Fails if that process is not Nacre, belongs to another user, rejects
/// the request, or does not answer.
pub(super) fn mount(
    address: &AddressInUse,
    request: &MountRequest,
    start_params: &[String],
) -> Result<Option<u32>> {
    let start_time = Instant::now();
    let (nid, port) = (address.nid, address.port);
    let mut user = address.user;
    while user.is_none() {
        if !matches!(try_listen(nid, port), Err(LnetError::AddrInUse { .. })) {
            return Ok(None);
        }
        // An exiting process releases its claim and its port at slightly different times.
        if start_time.elapsed() > PORT_RELEASE_MAX {
            bail!(
                "{nid}: a process that is not nacre listens on port {port}: stop it, or {}",
                suggest_address(nid, port)
            );
        }
        std::thread::sleep(POLL_INTERVAL);
        user = user_of(nid.addr(), port);
    }
    while let Some(current) = user {
        check_user(&AddressInUse {
            user: Some(current),
            ..*address
        })?;
        if let Some(process) = process::all().into_iter().find(|r| r.pid == current.pid) {
            let rejection_context = || {
                let process = describe_process(current.pid, &current.to_string());
                format!("{nid} is the address of {process}, which was asked to mount")
            };
            match request_mount(&process, request.clone(), start_params.to_vec()) {
                Ok(true) => return Ok(Some(current.pid)),
                // The process is about to exit.
                Ok(false) => {}
                Err(e) if process.is_alive() => return Err(e).with_context(rejection_context),
                Err(_) => {}
            }
        }
        if start_time.elapsed() > RECORD_WAIT_MAX {
            bail!(
                "{nid} is the address of {current}, which does not answer: stop it, or {}",
                suggest_address(nid, port)
            );
        }
        std::thread::sleep(POLL_INTERVAL);
        user = user_of(nid.addr(), port);
    }
    Ok(None)
}

/// Fails if the process that uses the address cannot mount for this user, because it belongs to
/// another user or is in another PID namespace.
pub(super) fn check_user(address: &AddressInUse) -> Result<()> {
    match address.user {
        Some(AddressUser { pid: 0, .. }) => bail!(
            "{} is the address of a process in another PID namespace: stop that process, or {}",
            address.nid,
            suggest_address(address.nid, address.port)
        ),
        Some(user) if user.uid != process::uid() => bail!(
            "{} is the address of {}: one address is one node, so that user must mount, or {}",
            address.nid,
            describe_process(user.pid, &user.to_string()),
            suggest_address(address.nid, address.port)
        ),
        _ => Ok(()),
    }
}

/// Describes a process by its directories and mounts, or by `fallback` if this user cannot see its
/// record.
fn describe_process(pid: u32, fallback: &str) -> String {
    let process = process::of_all_users().into_iter().find(|r| r.pid == pid);
    let Some(ProcessRecord {
        role,
        dirs,
        mounts,
        owner,
        ..
    }) = process
    else {
        return fallback.to_owned();
    };
    let dirs = dirs.iter().map(|d| format!("in {}", d.display()));
    let mounts = mounts
        .iter()
        .map(|m| format!("with {} on {}", m.source, m.mountpoint.display()));
    let details: Vec<String> = dirs.chain(mounts).collect();
    format!(
        "nacre {role} (process {pid}, user {owner}) {}",
        details.join(", ")
    )
}

/// The part of an error message that suggests another address.
fn suggest_address(nid: Nid, port: u16) -> String {
    let net = lnet::net_name(nid.net_number());
    let free: Vec<String> = free_addresses(port)
        .iter()
        .map(|addr| format!("{addr}@{net}"))
        .collect();
    match free.is_empty() {
        true => {
            "add an address to the interface (ip addr add) and use it with --listen (in fstab: listen=NID)"
                .to_owned()
        }
        false => format!(
            "use another address of this machine with --listen: {} (in fstab: listen=NID)",
            free.join(", ")
        ),
    }
}
