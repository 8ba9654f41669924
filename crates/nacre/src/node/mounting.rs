//! Mounts of a node, made and ended one by one while it runs.
//!
//! One address is one node of the network, so all mounts of a machine may share a process. A mount is made in three steps, so
//! that nobody waits for the node while a server does not answer: [`Node::begin_mount`] and [`Node::end_mount`] have the node for
//! a moment, [`Mounter::mount`] talks to the servers in between.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use client::{Atime, Client, Cred, MountOptions, parse_source};
use fuse::{FuseOptions, Mounted};
use mgc::Mgc;
use params::Registry;
use rpc::Ptlrpc;
use serde::{Deserialize, Serialize};
use wire::Nid;

use super::{Node, bounded, connect_mgc, random};
use crate::mount_options::MountFlags;
use crate::running::MountRecord;

/// A mount that is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MountRequest {
    /// `MGSNID[,MGSNID..]:/FSNAME[/SUBDIR]`.
    pub(crate) source: String,
    /// Where; an absolute path.
    pub(crate) mountpoint: PathBuf,
    /// Mount options.
    pub(crate) options: Vec<String>,
}

/// A mount: the client, and the kernel's side of it.
pub(super) struct MountHere {
    pub(super) record: MountRecord,
    pub(super) client: Arc<Client>,
    pub(super) kernel: Arc<Mounted>,
}

/// Which mounts there are, and which are being made.
#[derive(Default)]
pub(super) struct Mounts {
    pub(super) made: Vec<MountHere>,
    /// How many are being made.
    making: usize,
    /// The process is about to end and takes no more.
    closed: bool,
}

impl Mounts {
    /// No further mount is made.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }
}

/// What is needed of a node to make a mount.
pub(crate) struct Mounter {
    rpc: Arc<Ptlrpc>,
    registry: Registry,
    mgc: Option<Arc<Mgc>>,
}

/// A mount that the kernel has.
pub(crate) struct Made {
    mount: MountHere,
    mgc: (Vec<Nid>, Arc<Mgc>),
}

impl Mounter {
    /// Mounts a file system.
    pub(crate) async fn mount(&self, request: &MountRequest) -> Result<Made> {
        let source = parse_source(&request.source)?;
        let (mgs, fsname) = (source.mgs.clone(), source.fsname.clone());
        let how = MountFlags::parse(&request.options)?;
        let options = MountOptions {
            params: self.registry.clone(),
            // Reading what cannot be changed is no access.
            atime: if how.read_only { Atime::Never } else { how.atime },
            diratime: !how.no_diratime,
            subdir: source.subdir.clone(),
            mounter: Cred::user(
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            user_fid2path: how.user_fid2path,
            ..MountOptions::new(mgs.clone(), &fsname, random()?)
        };
        // The mount has a connection of its own; this one is for parameters.
        let mgc = match &self.mgc {
            Some(mgc) => mgc.clone(),
            None => connect_mgc(&self.rpc, &self.registry, &mgs)
                .await
                .with_context(|| format!("cannot mount file system '{fsname}'"))?,
        };
        let client = match Client::mount(&self.rpc, options).await {
            Ok(client) => client,
            Err(e) => {
                self.give_up(&mgc).await;
                return Err(e.into());
            }
        };
        let source = source.to_string();
        let options = FuseOptions {
            flags: how.kernel(),
            ..FuseOptions::new(source.clone())
        };
        match fuse::mount(client.clone(), &request.mountpoint, options).await {
            Ok(kernel) => Ok(Made {
                mount: MountHere {
                    record: MountRecord {
                        mountpoint: kernel.path().to_owned(),
                        source,
                    },
                    client,
                    kernel: Arc::new(kernel),
                },
                mgc: (mgs, mgc),
            }),
            Err(e) => {
                client.umount().await;
                self.give_up(&mgc).await;
                Err(e.into())
            }
        }
    }

    /// Ends a connection to an MGS that was made for a mount of which nothing came.
    async fn give_up(&self, mgc: &Arc<Mgc>) {
        if self.mgc.is_none() {
            bounded("the connection to the MGS", mgc.disconnect()).await;
        }
    }
}

impl MountHere {
    /// Ends a mount that the kernel does not have any more: what was open is closed, and the servers are told.
    pub(super) async fn end(self) {
        if let Err(e) = self.kernel.unmount(true).await {
            tracing::warn!("{}: {e}", self.record.mountpoint.display());
        }
        bounded("the client", self.client.umount()).await;
    }
}

impl Node {
    /// Begins to make a mount; nothing when this process is about to end.
    pub(crate) fn begin_mount(&mut self, request: &MountRequest) -> Option<Mounter> {
        if self.mounts.closed {
            return None;
        }
        self.mounts.making += 1;
        let mgs = parse_source(&request.source)
            .map(|source| source.mgs)
            .unwrap_or_default();
        let known = self.mgcs.iter().find(|(at, _)| *at == mgs);
        Some(Mounter {
            rpc: self.rpc.clone(),
            registry: self.registry.clone(),
            mgc: known.map(|(_, mgc)| mgc.clone()),
        })
    }

    /// Takes in what became of it; gives the kernel's side, to wait for its end.
    pub(crate) fn end_mount(&mut self, made: Result<Made>) -> Result<Arc<Mounted>> {
        self.mounts.making -= 1;
        let Made { mount, mgc } = made?;
        if self.mounts.closed {
            tokio::spawn(mount.end());
            bail!("this process is stopping");
        }
        match self.mgcs.iter().find(|(at, _)| *at == mgc.0) {
            None => self.mgcs.push(mgc),
            Some((_, known)) if Arc::ptr_eq(known, &mgc.1) => {}
            // Another mount of the same file system began at the same time.
            Some(_) => drop(tokio::spawn(async move { mgc.1.disconnect().await })),
        }
        let kernel = mount.kernel.clone();
        self.mounts.made.push(mount);
        Ok(kernel)
    }

    /// The kernel's side of the mount at a path.
    pub(crate) fn mounted(&self, path: &Path) -> Option<Arc<Mounted>> {
        let found = self.mounts.made.iter().rfind(|m| m.record.mountpoint == path);
        found.map(|m| m.kernel.clone())
    }

    /// Takes out a mount that the kernel does not have any more; gives what is left to be done for it, if nobody else does it.
    pub(crate) fn take_mount(&mut self, kernel: &Arc<Mounted>) -> Option<impl Future<Output = ()> + use<>> {
        let at = self
            .mounts
            .made
            .iter()
            .position(|m| Arc::ptr_eq(&m.kernel, kernel))?;
        Some(self.mounts.made.remove(at).end())
    }

    /// Whether there is no mount and none is being made; then none can be made any more, since the process will end.
    pub(crate) fn close_if_unused(&mut self) -> bool {
        self.mounts.closed |= self.mounts.made.is_empty() && self.mounts.making == 0;
        self.mounts.closed
    }

    /// Unmounts everything. When a mount is in use, and not `lazy`, it and those after it stay.
    pub(crate) async fn unmount_all(&mut self, lazy: bool) -> Result<()> {
        let mut gone = Vec::new();
        for mount in &self.mounts.made {
            let at = mount.record.mountpoint.display();
            if let Err(e) = mount.kernel.unmount(lazy).await {
                let refused = crate::mounts::in_use(e, &mount.record.mountpoint);
                return match gone.is_empty() {
                    true => Err(refused),
                    false => Err(refused.context(format!("only {} was unmounted", gone.join(" ")))),
                };
            }
            gone.push(at.to_string());
        }
        Ok(())
    }
}
