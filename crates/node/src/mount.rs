//! Mounts of a node for programs in the same process.

use std::sync::Arc;

use client::{Client, MountOptions, Unsaved};
use wire::Nid;

use crate::steps::limit_step;
use crate::{Node, NodeError};

impl Node {
    /// Options for a mount on this node of the file system `fsname` of the MGS at `mgs`: the node's
    /// parameters, job names, clock and random numbers, and the defaults.
    ///
    /// # Errors
    ///
    /// [`NodeError::Random`] if the source of random numbers fails.
    pub fn mount_options(&self, mgs: Vec<Nid>, fsname: &str) -> Result<MountOptions, NodeError> {
        let clock = self.config.clock.clone();
        Ok(MountOptions {
            params: self.registry().clone(),
            jobs: self.config.jobs.clone(),
            clock: Arc::new(move || clock.now()),
            ..MountOptions::new(mgs, fsname, self.config.random.number()?)
        })
    }

    /// Mounts a file system, until [`Node::umount`] or [`Node::stop`]. The client has its own
    /// connection to the MGS. With [`follow_mgs_params`](crate::NodeConfig::follow_mgs_params), the
    /// node connects to that MGS too, unless it is connected already.
    ///
    /// # Errors
    ///
    /// [`NodeError::MountMgs`] or [`NodeError::Mount`] with the reason; [`NodeError::Stopping`].
    pub async fn mount(&self, options: MountOptions) -> Result<Arc<Client>, NodeError> {
        let mgs = options.mgs.clone();
        let mut new_mgc = None;
        if self.config.follow_mgs_params && self.mgc_at(&mgs).is_none() {
            let connected = self.connect_mgc(&mgs).await;
            new_mgc = Some(connected.map_err(|e| match e {
                NodeError::Mgc(source) => NodeError::MountMgs {
                    fsname: options.fsname.clone(),
                    source,
                },
                e => e,
            })?);
        }
        let mounted = Client::mount(&self.rpc, options).await;
        let client = mounted.as_ref().ok().cloned();
        // Keep the connection to the MGS for the mount, unless a concurrent mount or a target has
        // connected meanwhile.
        let is_kept = match &client {
            Some(client) => {
                let mut state = self.state.lock();
                if !state.stopping {
                    state.clients.push(client.clone());
                    if state.mgcs.iter().all(|(known, _)| *known != mgs) {
                        state.mgcs.extend(new_mgc.take().map(|mgc| (mgs, mgc)));
                    }
                }
                !state.stopping
            }
            None => false,
        };
        if let Some(mgc) = new_mgc {
            limit_step("the connection to the MGS", mgc.disconnect()).await;
        }
        match client {
            Some(client) if !is_kept => {
                client.umount().await;
                Err(NodeError::Stopping)
            }
            _ => Ok(mounted?),
        }
    }

    /// Unmounts ([`Client::umount`]). Returns the changes that may be lost.
    pub async fn umount(&self, client: &Arc<Client>) -> Vec<Unsaved> {
        self.state
            .lock()
            .clients
            .retain(|known| !Arc::ptr_eq(known, client));
        client.umount().await
    }
}
