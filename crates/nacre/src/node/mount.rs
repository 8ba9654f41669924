//! Mounts of a node, which begin and end while it runs.
//!
//! All mounts that use one address share a process, because one address is one LNet node. A mount
//! takes three steps, so that requests to the node do not wait for an unresponsive server:
//! [`Node::begin_mount`] and [`Node::finish_mount`] need the node's lock briefly;
//! [`Mounter::mount`] sends requests to the servers in between.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use client::{Atime, Client, Cred, JobIds, MountOptions, parse_source};
use fuse::{FuseMount, FuseOptions};
use mgc::Mgc;
use params::Registry;
use rpc::Ptlrpc;
use serde::{Deserialize, Serialize};
use wire::Nid;

use super::{Node, connect_mgc, limit_step, random_u64};
use crate::mount_options::MountFlags;
use crate::process::MountRecord;

/// A request to mount a file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MountRequest {
    /// `MGSNID[,MGSNID..]:/FSNAME[/SUBDIR]`.
    pub(crate) source: String,
    /// Absolute path of the mount point.
    pub(crate) mountpoint: PathBuf,
    /// Mount options.
    pub(crate) options: Vec<String>,
}

/// A mount: the client and the FUSE session.
pub(super) struct LocalMount {
    pub(super) record: MountRecord,
    pub(super) client: Arc<Client>,
    pub(super) fuse_mount: Arc<FuseMount>,
}

/// The mounts of a node.
#[derive(Default)]
pub(super) struct Mounts {
    pub(super) active: Vec<LocalMount>,
    /// Number of mounts between [`Node::begin_mount`] and [`Node::finish_mount`].
    pending: usize,
    /// Whether the process is about to exit and accepts no new mount.
    closed: bool,
}

impl Mounts {
    /// Accepts no new mount from now on.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }
}

/// The parts of a node that a mount needs.
pub(crate) struct Mounter {
    rpc: Arc<Ptlrpc>,
    registry: Registry,
    jobs: Arc<JobIds>,
    /// The node's connection to the MGS, if an earlier mount or a target uses that MGS.
    mgc: Option<Arc<Mgc>>,
}

/// A mount that the kernel has accepted.
pub(crate) struct NewMount {
    mount: LocalMount,
    /// The NIDs of the MGS, and the connection to it.
    mgc: (Vec<Nid>, Arc<Mgc>),
}

impl Mounter {
    /// Mounts a file system.
    pub(crate) async fn mount(&self, request: &MountRequest) -> Result<NewMount> {
        let source = parse_source(&request.source)?;
        let (mgs, fsname) = (source.mgs.clone(), source.fsname.clone());
        let flags = MountFlags::parse(&request.options)?;
        let options = MountOptions {
            params: self.registry.clone(),
            jobs: self.jobs.clone(),
            // On a read-only mount, reading must not update atime.
            atime: if flags.read_only {
                Atime::Never
            } else {
                flags.atime
            },
            diratime: !flags.no_diratime,
            subdir: source.subdir.clone(),
            mounter: Cred::user(
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            user_fid2path: flags.user_fid2path,
            ..MountOptions::new(mgs.clone(), &fsname, random_u64()?)
        };
        // The client has its own connection to the MGS. This connection of the node receives the
        // parameters that the MGS keeps.
        let mgc = match &self.mgc {
            Some(mgc) => mgc.clone(),
            None => connect_mgc(&self.rpc, &self.registry, &mgs)
                .await
                .with_context(|| format!("cannot mount file system '{fsname}'"))?,
        };
        let client = match Client::mount(&self.rpc, options).await {
            Ok(client) => client,
            Err(e) => {
                self.release_mgc(&mgc).await;
                return Err(e.into());
            }
        };
        let source = source.to_string();
        let options = FuseOptions {
            flags: flags.kernel_flags(),
            ..FuseOptions::new(source.clone())
        };
        match fuse::mount(client.clone(), &request.mountpoint, options).await {
            Ok(fuse_mount) => Ok(NewMount {
                mount: LocalMount {
                    record: MountRecord {
                        mountpoint: fuse_mount.path().to_owned(),
                        source,
                    },
                    client,
                    fuse_mount: Arc::new(fuse_mount),
                },
                mgc: (mgs, mgc),
            }),
            Err(e) => {
                client.umount().await;
                self.release_mgc(&mgc).await;
                Err(e.into())
            }
        }
    }

    /// Disconnects from the MGS after a failed mount, unless an earlier mount or target uses the
    /// connection.
    async fn release_mgc(&self, mgc: &Arc<Mgc>) {
        if self.mgc.is_none() {
            limit_step("the connection to the MGS", mgc.disconnect()).await;
        }
    }
}

impl LocalMount {
    /// Detaches the mount if the kernel has not ended it, closes open files, and disconnects the
    /// client from the servers.
    pub(super) async fn end(self) {
        limit_step("a mount", async {
            if let Err(e) = self.fuse_mount.unmount(true).await {
                tracing::warn!("cannot detach {}: {e}", self.record.mountpoint.display());
            }
            self.client.umount().await
        })
        .await;
    }
}

impl Node {
    /// Begins a mount; `None` if this process is about to exit.
    pub(crate) fn begin_mount(&mut self, request: &MountRequest) -> Option<Mounter> {
        if self.mounts.closed {
            return None;
        }
        self.mounts.pending += 1;
        let mgs = parse_source(&request.source)
            .map(|source| source.mgs)
            .unwrap_or_default();
        let existing = self.mgcs.iter().find(|(nids, _)| *nids == mgs);
        Some(Mounter {
            rpc: self.rpc.clone(),
            registry: self.registry.clone(),
            jobs: self.jobs.clone(),
            mgc: existing.map(|(_, mgc)| mgc.clone()),
        })
    }

    /// Records the result of [`Mounter::mount`]. Returns the FUSE session, so that the caller can
    /// wait for its end.
    pub(crate) fn finish_mount(&mut self, result: Result<NewMount>) -> Result<Arc<FuseMount>> {
        self.mounts.pending -= 1;
        let NewMount { mount, mgc } = result?;
        if self.mounts.closed {
            tokio::spawn(mount.end());
            bail!("this process is stopping");
        }
        match self.mgcs.iter().find(|(nids, _)| *nids == mgc.0) {
            None => self.mgcs.push(mgc),
            Some((_, known)) if Arc::ptr_eq(known, &mgc.1) => {}
            // A concurrent mount of the same file system has connected first.
            Some(_) => drop(tokio::spawn(async move { mgc.1.disconnect().await })),
        }
        let fuse_mount = mount.fuse_mount.clone();
        self.mounts.active.push(mount);
        Ok(fuse_mount)
    }

    /// The FUSE session of the mount at a path.
    pub(crate) fn fuse_mount_at(&self, path: &Path) -> Option<Arc<FuseMount>> {
        let found = self.mounts.active.iter().rfind(|m| m.record.mountpoint == path);
        found.map(|m| m.fuse_mount.clone())
    }

    /// Removes a mount that the kernel has ended. Returns the remaining cleanup; `None` if another
    /// task has removed the mount already.
    pub(crate) fn remove_mount(
        &mut self,
        fuse_mount: &Arc<FuseMount>,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let index = self
            .mounts
            .active
            .iter()
            .position(|m| Arc::ptr_eq(&m.fuse_mount, fuse_mount))?;
        Some(self.mounts.active.remove(index).end())
    }

    /// Closes the mounts if none exists or is in progress. Returns whether they are closed: no
    /// mount can begin any more, because the process will exit.
    pub(crate) fn close_if_unused(&mut self) -> bool {
        self.mounts.closed |= self.mounts.active.is_empty() && self.mounts.pending == 0;
        self.mounts.closed
    }

    /// Unmounts everything. Stops at the first error; with `lazy`, detaches mounts that are in use.
    pub(crate) async fn unmount_all(&mut self, lazy: bool) -> Result<()> {
        let mut unmounted = Vec::new();
        for mount in &self.mounts.active {
            if let Err(e) = mount.fuse_mount.unmount(lazy).await {
                let error = crate::mounts::busy_error(e, &mount.record.mountpoint);
                return match unmounted.is_empty() {
                    true => Err(error),
                    false => Err(error.context(format!("only {} was unmounted", unmounted.join(" ")))),
                };
            }
            unmounted.push(mount.record.mountpoint.display().to_string());
        }
        Ok(())
    }
}
