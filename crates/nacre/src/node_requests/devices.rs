//! The devices of a process, as Lustre names them: targets, imports, and the parts of mounts.

use std::path::{Path, PathBuf};

use client::Client;
use mgs::Mgs;
use rpc::{Import, ImportState};
use serde::{Deserialize, Serialize};

use super::NodeHandles;

/// A device, in the answer to a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Device {
    /// Lustre's type of device: `mdt`, `osc`, ..
    pub(crate) kind: String,
    pub(crate) name: String,
    /// The UUID of the device, or of the mount that the device is a part of.
    pub(crate) uuid: String,
    /// The target of an import.
    pub(crate) target: Option<Target>,
    /// The mount that the device is a part of.
    pub(crate) mountpoint: Option<PathBuf>,
}

/// The target of an import.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) uuid: String,
    /// The NID in use.
    pub(crate) nid: String,
    /// Whether the target answers; an idle import counts as connected.
    pub(crate) connected: bool,
    /// Number of times that the server has evicted this client.
    pub(crate) evictions: u64,
    /// Seconds since the last eviction.
    pub(crate) evicted_secs_ago: Option<u64>,
}

impl Device {
    fn new(kind: &str, name: impl Into<String>, uuid: impl Into<String>) -> Device {
        Device {
            kind: kind.to_owned(),
            name: name.into(),
            uuid: uuid.into(),
            target: None,
            mountpoint: None,
        }
    }

    fn of_import(kind: &str, import: &Import, uuid: &str) -> Device {
        Device {
            target: Some(Target {
                uuid: import.target_uuid().to_owned(),
                nid: import.peer().to_string(),
                connected: matches!(import.state(), ImportState::Full | ImportState::Idle),
                evictions: import.evictions(),
                evicted_secs_ago: import.since_eviction().map(|time| time.as_secs()),
            }),
            ..Device::new(kind, import.name(), uuid)
        }
    }
}

impl NodeHandles {
    /// The devices in Lustre's order.
    pub(super) fn devices(&self) -> Vec<Device> {
        let mut out = Vec::new();
        if self.mgs.is_some() {
            out.push(Device::new("mgs", Mgs::UUID, Mgs::UUID));
        }
        for mgc in &self.mgcs {
            let import = mgc.import();
            out.push(Device::of_import("mgc", import, import.target_uuid()));
        }
        for (mountpoint, client) in &self.clients {
            out.extend(mount_devices(mountpoint, client));
        }
        for target in self.targets.iter().filter(|t| *t != Mgs::UUID) {
            let kind = match target.contains("-MDT") {
                true => "mdt",
                false => "obdfilter",
            };
            out.push(Device::new(kind, target, format!("{target}_UUID")));
        }
        for mdt in &self.mdts {
            let uuid = format!("{}-mdtlov_UUID", mdt.uuid().trim_end_matches("_UUID"));
            let imports = mdt.imports();
            out.extend(
                imports
                    .iter()
                    .map(|import| Device::of_import("osp", import, &uuid)),
            );
        }
        out
    }
}

fn mount_devices(mountpoint: &Path, client: &Client) -> Vec<Device> {
    let (fs, instance, uuid) = (client.fsname(), client.instance(), client.uuid());
    let mut out = vec![
        Device::new("lov", format!("{fs}-clilov-{instance}"), uuid),
        Device::new("lmv", format!("{fs}-clilmv-{instance}"), uuid),
    ];
    for import in client.imports() {
        let kind = match import.name().contains("-mdc-") {
            true => "mdc",
            false => "osc",
        };
        out.push(Device::of_import(kind, &import, uuid));
    }
    for device in &mut out {
        device.mountpoint = Some(mountpoint.to_path_buf());
    }
    out
}
