//! Mounts of a node, which begin and end while it runs.
//!
//! All mounts that use one address share a process, because one address is one LNet node. A mount
//! takes three steps, so that requests to the node do not wait for an unresponsive server:
//! [`ProcessNode::begin_mount`] and [`ProcessNode::finish_mount`] need the node's lock briefly;
//! [`Mounter::mount`] sends requests to the servers in between.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use client::{Atime, Client, Cred, MountOptions, Unsaved, parse_source};
use fuse::{FuseMount, FuseOptions};
use node::{Node, limit_step};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::ProcessNode;
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
pub(crate) struct LocalMount {
    pub(super) record: MountRecord,
    pub(super) client: Arc<Client>,
    pub(super) fuse_mount: Arc<FuseMount>,
    node: Arc<Node>,
    /// The result of [`LocalMount::end`].
    unsaved: OnceCell<Vec<Unsaved>>,
}

/// The mounts of a node.
#[derive(Default)]
pub(super) struct Mounts {
    pub(super) active: Vec<Arc<LocalMount>>,
    /// Mounts that the kernel has ended; their clients still leave the servers.
    ending: Vec<Arc<LocalMount>>,
    /// Number of mounts between [`ProcessNode::begin_mount`] and [`ProcessNode::finish_mount`].
    pending: usize,
    /// Whether the process is about to exit and accepts no new mount.
    closed: bool,
}

impl Mounts {
    /// Accepts no new mount from now on.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Takes all mounts, to end them.
    pub(super) fn take_all(&mut self) -> Vec<Arc<LocalMount>> {
        self.active.drain(..).chain(self.ending.drain(..)).collect()
    }
}

/// Mounts on a node.
pub(crate) struct Mounter {
    node: Arc<Node>,
}

impl Mounter {
    /// Mounts a file system. The result is a mount that the kernel has accepted.
    pub(crate) async fn mount(&self, request: &MountRequest) -> Result<LocalMount> {
        let source = parse_source(&request.source)?;
        let flags = MountFlags::parse(&request.options)?;
        let options = MountOptions {
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
            lazy_close: flags.lazy_close,
            ..self.node.mount_options(source.mgs.clone(), &source.fsname)?
        };
        let client = self.node.mount(options).await?;
        let source = source.to_string();
        let options = FuseOptions {
            flags: flags.kernel_flags(),
            ..FuseOptions::new(source.clone())
        };
        match fuse::mount(client.clone(), &request.mountpoint, options).await {
            Ok(fuse_mount) => Ok(LocalMount {
                record: MountRecord {
                    mountpoint: fuse_mount.path().to_owned(),
                    source,
                },
                client,
                fuse_mount: Arc::new(fuse_mount),
                node: self.node.clone(),
                unsaved: OnceCell::new(),
            }),
            Err(e) => {
                self.node.umount(&client).await;
                Err(e.into())
            }
        }
    }
}

impl LocalMount {
    /// The FUSE session.
    pub(crate) fn fuse_mount(&self) -> &Arc<FuseMount> {
        &self.fuse_mount
    }

    /// Detaches the mount if the kernel has not ended it, closes open files, and disconnects the
    /// client from the servers. Returns the changes that may be lost. A second call waits for the
    /// first.
    pub(crate) async fn end(&self) -> &[Unsaved] {
        self.unsaved.get_or_init(|| self.leave()).await
    }

    async fn leave(&self) -> Vec<Unsaved> {
        let detached = limit_step("a mount", self.fuse_mount.unmount(true)).await;
        if let Some(Err(e)) = detached {
            tracing::warn!("cannot detach {}: {e}", self.record.mountpoint.display());
        }
        self.node.umount(&self.client).await
    }
}

impl ProcessNode {
    /// Begins a mount; `None` if this process is about to exit.
    pub(crate) fn begin_mount(&mut self) -> Option<Mounter> {
        if self.mounts.closed {
            return None;
        }
        self.mounts.pending += 1;
        Some(Mounter {
            node: self.node.clone(),
        })
    }

    /// Records the result of [`Mounter::mount`].
    pub(crate) fn finish_mount(&mut self, result: Result<LocalMount>) -> Result<Arc<LocalMount>> {
        self.mounts.pending -= 1;
        let mount = result?;
        if self.mounts.closed {
            tokio::spawn(async move { mount.end().await.len() });
            bail!("this process is stopping");
        }
        let mount = Arc::new(mount);
        self.mounts.active.push(mount.clone());
        Ok(mount)
    }

    /// The mount at a path.
    pub(crate) fn mount_at(&self, path: &Path) -> Option<Arc<LocalMount>> {
        let mut mounts = self.mounts.active.iter();
        mounts.rfind(|m| m.record.mountpoint == path).cloned()
    }

    /// Removes a mount that the kernel has ended from the node's mounts. The caller awaits
    /// [`LocalMount::end`], then calls [`ProcessNode::forget_mount`].
    pub(crate) fn remove_mount(&mut self, mount: &Arc<LocalMount>) {
        let Mounts { active, ending, .. } = &mut self.mounts;
        ending.extend(active.extract_if(.., |other| Arc::ptr_eq(other, mount)));
    }

    /// Forgets a mount after its client has left the servers.
    pub(crate) fn forget_mount(&mut self, mount: &Arc<LocalMount>) {
        self.mounts.ending.retain(|other| !Arc::ptr_eq(other, mount));
    }

    /// Refuses further mounts if no mount is active or in progress, so that the process can exit.
    /// Returns whether the node refuses mounts.
    pub(crate) fn refuse_mounts_if_unused(&mut self) -> bool {
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

/// Fails if changes of a mount may be lost.
pub(crate) fn check_saved(unsaved: &[Unsaved]) -> Result<()> {
    if unsaved.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = unsaved.iter().map(ToString::to_string).collect();
    bail!("unmounted, but not everything is saved: {}", lines.join("; "))
}
