//! Answers the requests of `nacre lctl`, `lfs`, `lnetctl` and `lst` to a node.

mod by_fid;
mod devices;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::{Client, Cred, Groups};
use lnet::Lnet;
use mdt::Mdt;
use mgc::{Mgc, TargetConf};
use mgs::Mgs;
use params::{ParamError, Registry};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wire::{
    Nid, OS_STATFS_DEGRADED, OS_STATFS_ENOINO, OS_STATFS_ENOSPC, OS_STATFS_NOCREATE, OS_STATFS_READONLY,
    ObdStatfs,
};

use crate::control::{Caller, Request};
pub(crate) use devices::Device;

/// The parts of a node that answer requests, so that a request does not hold the node's lock.
pub(crate) struct NodeHandles {
    pub(crate) registry: Registry,
    pub(crate) lnet: Arc<Lnet>,
    pub(crate) mgs: Option<Arc<Mgs>>,
    pub(crate) mgcs: Vec<Arc<Mgc>>,
    /// The client of each mount, with the mount point.
    pub(crate) clients: Vec<(PathBuf, Arc<Client>)>,
    /// Names of the targets.
    pub(crate) targets: Vec<String>,
    /// The MDTs among them.
    pub(crate) mdts: Vec<Arc<Mdt>>,
    pub(crate) console: Option<Arc<lst_console::Console>>,
}

/// The ids of an inode, in the answer to a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct InodeIds {
    pub(crate) fid: String,
    pub(crate) projid: u32,
    /// The index of its MDT.
    pub(crate) mdt: u32,
}

impl NodeHandles {
    /// Answers a request about the node. Fails for requests about the process (status, stop, mount,
    /// umount), which [`crate::lifecycle`] answers.
    pub(crate) async fn answer(&self, request: Request, caller: Caller) -> Result<Value> {
        match request {
            Request::GetParam { pattern } => Ok(json!(self.registry.get(&pattern))),
            Request::Metrics => Ok(json!(crate::metrics::render(&self.registry))),
            Request::Activity { directories } => {
                Ok(json!(crate::activity::collect(&self.registry, directories)))
            }
            Request::ListParam { pattern, recursive } => {
                let list = self.registry.list(&pattern, recursive);
                let item = |i: &params::ParamInfo| json!({ "name": i.name, "is_level": i.is_level, "writable": i.writable, "about": i.about });
                Ok(list.iter().map(item).collect())
            }
            Request::SetParam { pattern, value } => Ok(json!(self.registry.set(&pattern, &value)?)),
            Request::KeepParam { name, value } => {
                let mgs = self.mgs()?;
                if let Some(value) = &value {
                    self.check_value(&name, value)?;
                }
                mgs.set_permanent_param(&name, value.as_deref()).await?;
                Ok(Value::Null)
            }
            Request::Nodemap(change) => {
                self.mgs()?.change_nodemaps(|table| change.apply(table)).await?;
                Ok(Value::Null)
            }
            Request::Ping { nid, timeout_s } => {
                let to: Nid = nid.parse().with_context(|| format!("'{nid}' is not a NID"))?;
                let info = self.lnet.ping(to, Duration::from_secs(timeout_s)).await?;
                Ok(info.nis.iter().map(|ni| json!(ni.ns_nid.to_string())).collect())
            }
            Request::Devices => Ok(json!(self.devices())),
            Request::Lnet(op) => Ok(json!(op.perform(&self.lnet).await?)),
            Request::Lst { command } => Ok(json!(self.console()?.execute(command).await)),
            Request::LstCounts { names, timeout_s } => {
                let counts = self
                    .console()?
                    .counts(&names, Duration::from_secs(timeout_s))
                    .await;
                Ok(json!(counts.map_err(anyhow::Error::msg)?))
            }
            Request::Status | Request::Stop { .. } | Request::Mount { .. } | Request::Umount { .. } => {
                bail!("this request is not for the node")
            }
            Request::Df { mountpoint } => Ok(target_space(self.client(&mountpoint)?).await),
            Request::Path2fid { mountpoint, paths } => {
                let client = self.client(&mountpoint)?;
                let cred = cred_of(caller);
                let mut fids = Vec::new();
                for path in paths {
                    let path = Path::new("/").join(path);
                    let found = client.walk(&cred, path.as_os_str().as_bytes(), false).await;
                    let (fid, _) = found.with_context(|| path.display().to_string())?;
                    fids.push(fid.to_string());
                }
                Ok(json!(fids))
            }
            Request::Inodes { mountpoint, paths } => {
                let client = self.client(&mountpoint)?;
                let cred = cred_of(caller);
                let mut inodes = Vec::new();
                for path in paths {
                    let path = Path::new("/").join(path);
                    inodes.push(inode(client, &cred, &path).await?);
                }
                Ok(json!(inodes))
            }
            Request::Fid2path { mountpoint, fids } => Ok(json!(
                by_fid::paths(self.client(&mountpoint)?, &cred_of(caller), &fids).await?
            )),
            Request::Parents { mountpoint, paths } => Ok(json!(
                by_fid::parents(self.client(&mountpoint)?, &cred_of(caller), &paths).await?
            )),
            Request::Rmfid { mountpoint, fids } => Ok(json!(
                by_fid::remove(self.client(&mountpoint)?, &cred_of(caller), &fids).await?
            )),
            Request::Mkdir {
                mountpoint,
                path,
                mode,
                umask,
                layout,
            } => {
                let cred = Cred {
                    umask,
                    ..cred_of(caller)
                };
                by_fid::mkdir(self.client(&mountpoint)?, &cred, &path, mode, layout.into()).await?;
                Ok(Value::Null)
            }
            Request::RmEntry { mountpoint, paths } => {
                by_fid::remove_entries(self.client(&mountpoint)?, &cred_of(caller), &paths).await?;
                Ok(Value::Null)
            }
        }
    }

    /// Sets a parameter in this process before it becomes permanent, so that the command reports an
    /// invalid value. Otherwise the error would appear only in the logs of other nodes. A parameter
    /// that this process does not have is no error.
    fn check_value(&self, name: &str, value: &str) -> Result<()> {
        match self.registry.set(name, value) {
            Ok(_) | Err(ParamError::NotFound { .. }) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn mgs(&self) -> Result<&Mgs> {
        let mgs = self.mgs.as_deref();
        mgs.with_context(|| {
            let nids: Vec<String> = self.mgcs.iter().map(|mgc| mgc.import().peer().to_string()).collect();
            format!(
                "the MGS does not run in this process: run the command on the host of the MGS ({}), and select the process of the MGS with --dir if several run there",
                nids.join(" ")
            )
        })
    }

    fn console(&self) -> Result<&lst_console::Console> {
        self.console
            .as_deref()
            .context("this process has no session of LNet selftest")
    }

    fn client(&self, mountpoint: &Path) -> Result<&Arc<Client>> {
        let found = self.clients.iter().find(|(path, _)| path == mountpoint);
        found
            .map(|(_, client)| client)
            .with_context(|| format!("{} is not a mount of this process", mountpoint.display()))
    }
}

/// FID, project and MDT of a path from the root of a mount. Asks the MDT for the project.
async fn inode(client: &Client, cred: &Cred, path: &Path) -> Result<InodeIds> {
    let place = || path.display().to_string();
    let found = client.walk(cred, path.as_os_str().as_bytes(), false).await;
    let (fid, _) = found.with_context(place)?;
    let flags = client.inode_flags(cred, fid).await.with_context(place)?;
    Ok(InodeIds {
        fid: fid.to_string(),
        projid: flags.projid,
        mdt: client.mdt_of(fid).await.with_context(place)?,
    })
}

/// Space of each target of a mount, as JSON; `space` is null for a target that does not answer.
async fn target_space(client: &Client) -> Value {
    let config = client.config();
    let (mdts, osts) = tokio::join!(client.mdt_space(), client.ost_space());
    let rows = |kind: &'static str, targets: &[TargetConf], space: Vec<(u32, ObdStatfs)>| -> Vec<Value> {
        let row = |t: &TargetConf| {
            let found = space.iter().find(|(index, _)| *index == t.index).map(|(_, s)| s);
            let kib = |blocks: u64, s: &ObdStatfs| blocks.saturating_mul(s.os_bsize.into()) / 1024;
            let numbers = found.map(|s| {
                json!({
                    "total_kib": kib(s.os_blocks, s),
                    "used_kib": kib(s.os_blocks.saturating_sub(s.os_bfree), s),
                    "free_kib": kib(s.os_bavail, s),
                    "inodes": s.os_files,
                    "inodes_free": s.os_ffree,
                })
            });
            let state = letters(found.map_or(0, |s| s.os_state));
            json!({ "uuid": t.uuid, "kind": kind, "index": t.index, "space": numbers, "state": state })
        };
        targets.iter().map(row).collect()
    };
    let mut all = rows("MDT", &config.mdts, mdts);
    let osts = osts.into_iter().map(|(index, space)| (index.0, space));
    all.extend(rows("OST", &config.osts, osts.collect()));
    json!(all)
}

/// The letters of a target's states, as Lustre's `lfs df` prints them.
fn letters(os_state: u32) -> String {
    const LETTERS: [(u32, char); 5] = [
        (OS_STATFS_DEGRADED, 'D'),
        (OS_STATFS_READONLY, 'R'),
        (OS_STATFS_NOCREATE, 'N'),
        (OS_STATFS_ENOSPC, 'S'),
        (OS_STATFS_ENOINO, 'I'),
    ];
    let set = LETTERS.into_iter().filter(|(bit, _)| os_state & bit != 0);
    set.map(|(_, letter)| letter).collect()
}

/// Credentials of the calling process, for permission checks in the client. The supplementary
/// groups come from `/proc`; there are none if the process has exited.
fn cred_of(caller: Caller) -> Cred {
    let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
    let groups = status
        .lines()
        .find_map(|l| l.strip_prefix("Groups:"))
        .unwrap_or_default();
    let groups: Vec<u32> = groups.split_whitespace().filter_map(|g| g.parse().ok()).collect();
    let groups = Groups::Known(groups.into());
    Cred {
        uid: caller.uid,
        gid: caller.gid,
        groups,
        pid: caller.pid,
        ..Cred::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_lustres_letters() {
        assert_eq!(letters(0), "");
        assert_eq!(letters(OS_STATFS_DEGRADED | OS_STATFS_NOCREATE), "DN");
        assert_eq!(
            letters(OS_STATFS_READONLY | OS_STATFS_ENOSPC | OS_STATFS_ENOINO),
            "RSI"
        );
    }
}
