//! `lfs osts`, `mdts`, `check` and `getname`: the servers and names of mounts, from the devices of
//! their processes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::json;

use super::{ask, mounts_at};
use crate::cli::{CheckKind, Getname, ListTargets};
use crate::control::Request;
use crate::node_requests::Device;
use crate::output::{errln, outln};

/// A mount with its devices.
struct MountDevices {
    mountpoint: PathBuf,
    /// The devices of the mount, and the connections to the MGS, which all mounts of the process
    /// share.
    devices: Vec<Device>,
}

/// The mount at or above a path, or without a path all mounts.
fn mount_devices(path: Option<&Path>) -> Result<Vec<MountDevices>> {
    let mounts = mounts_at(path)?.into_iter();
    mounts
        .map(|(record, mount)| {
            let mut devices: Vec<Device> = ask(&record, &Request::Devices)?;
            let is_of_mount = |d: &Device| d.mountpoint.as_ref() == Some(&mount.mountpoint);
            devices.retain(|device| device.kind == "mgc" || is_of_mount(device));
            Ok(MountDevices {
                mountpoint: mount.mountpoint,
                devices,
            })
        })
        .collect()
}

/// Lists the targets of one kind of imports, `osc` or `mdc`. All are active: Nacre's imports cannot
/// be deactivated.
pub(super) fn list(args: &ListTargets, kind: &str) -> Result<()> {
    let mounts = mount_devices(args.path.as_deref())?;
    if args.json {
        return print_json(&mounts, &[kind]);
    }
    for mount in mounts {
        outln!("{}", if kind == "osc" { "OBDS:" } else { "MDTS:" });
        for device in mount.devices.iter().filter(|d| d.kind == kind) {
            let uuid = device.target.as_ref().map_or("", |t| &t.uuid);
            outln!("{}: {uuid} ACTIVE", target_index(uuid).unwrap_or(0));
        }
    }
    Ok(())
}

/// Prints the imports of these kinds as JSON, by mount.
fn print_json(mounts: &[MountDevices], kinds: &[&str]) -> Result<()> {
    let target = |device: &Device| {
        let target = device.target.as_ref()?;
        Some(json!({
            "device": device.name,
            "uuid": target.uuid,
            "index": target_index(&target.uuid),
            "nid": target.nid,
            "connected": target.connected,
        }))
    };
    let mount = |mount: &MountDevices| {
        let of_kinds = mount.devices.iter().filter(|d| kinds.contains(&d.kind.as_str()));
        json!({
            "mountpoint": mount.mountpoint,
            "targets": of_kinds.filter_map(target).collect::<Vec<_>>(),
        })
    };
    let mounts: Vec<_> = mounts.iter().map(mount).collect();
    outln!("{}", serde_json::to_string_pretty(&mounts)?);
    Ok(())
}

/// The index at the end of a target's UUID: 10 for `testfs-OST000a_UUID`.
fn target_index(uuid: &str) -> Option<u32> {
    let name = uuid.trim_end_matches("_UUID");
    let digits = name.get(name.len().checked_sub(4)?..)?;
    u32::from_str_radix(digits, 16).ok()
}

/// Prints a line for each connected import, and an error for each other one.
pub(super) fn check(kind: CheckKind, list: &ListTargets) -> Result<ExitCode> {
    let kinds: &[&str] = match kind {
        CheckKind::Osts => &["osc"],
        CheckKind::Mdts => &["mdc"],
        CheckKind::Mgts => &["mgc"],
        CheckKind::All => &["osc", "mdc", "mgc"],
    };
    let mut outcome = ExitCode::SUCCESS;
    let mounts = mount_devices(list.path.as_deref())?;
    if list.json {
        print_json(&mounts, kinds)?;
    }
    for mount in mounts {
        for kind in kinds {
            for device in mount.devices.iter().filter(|d| d.kind == *kind) {
                let Some(target) = &device.target else {
                    continue;
                };
                if target.connected {
                    if !list.json {
                        outln!("{} active.", device.name);
                    }
                    continue;
                }
                errln!(
                    "nacre: lfs check: {} is not connected to {} at {}: start that server, or see the mount's log",
                    device.name,
                    target.uuid,
                    target.nid
                );
                outcome = ExitCode::FAILURE;
            }
        }
    }
    Ok(outcome)
}

/// Prints the name of each mount, with the mount point unless one field of one mount is selected.
pub(super) fn names(args: &Getname) -> Result<()> {
    let mounts = match args.paths.is_empty() {
        true => mount_devices(None)?,
        false => {
            let each = args.paths.iter().map(|path| mount_devices(Some(path)));
            each.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()
        }
    };
    let is_bare = (args.fsname || args.instance || args.uuid) && args.paths.len() == 1;
    for mount in mounts {
        let lov = mount.devices.iter().find(|d| d.kind == "lov");
        let lov = lov.with_context(|| {
            format!(
                "the process of {} lists no lov device of this mount",
                mount.mountpoint.display()
            )
        })?;
        let (fsname, instance) = lov.name.split_once("-clilov-").unwrap_or((&lov.name, ""));
        let name = match () {
            () if args.fsname => fsname.to_owned(),
            () if args.instance => instance.to_owned(),
            () if args.uuid => lov.uuid.clone(),
            () => format!("{fsname}-{instance}"),
        };
        match is_bare {
            true => outln!("{name}"),
            false => outln!("{name} {}", mount.mountpoint.display()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::target_index;

    #[test]
    fn index_is_hexadecimal() {
        assert_eq!(target_index("testfs-OST000a_UUID"), Some(10));
        assert_eq!(target_index("x"), None);
    }
}
