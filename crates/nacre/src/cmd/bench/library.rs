//! Clients in this process without a kernel mount: LNet nodes with their own addresses, and mounts
//! on them.

use std::sync::Arc;

use anyhow::Result;
use client::{Client, MountOptions};
use cpt::{CptConfig, CptId, CptTable};
use lnet::{Lnet, LnetConfig};
use node::{Node, NodeConfig, RandomSource};
use params::Registry;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use wire::Nid;

use crate::cli::Net;
use crate::net;

/// Nodes for clients, each with its own address and RPC layer, like separate machines.
pub(super) struct Nodes {
    /// The runtime that runs the calls of the clients.
    pub(super) runtime: Handle,
    nodes: Vec<Arc<Node>>,
    /// The parameters of all mounts.
    params: Registry,
}

impl Nodes {
    /// Starts `count` nodes at addresses that can reach this MGS.
    pub(super) fn start(cpts: &Arc<CptTable>, mgs: &[Nid], net: &Net, count: usize) -> Result<Nodes> {
        let runtime = cpts.get(CptId(0)).handle().tokio().clone();
        let mut nodes = Nodes {
            runtime: runtime.clone(),
            nodes: Vec::new(),
            params: Registry::default(),
        };
        for _ in 0..count {
            if let Err(e) = runtime.block_on(nodes.add_node(cpts, mgs, net)) {
                nodes.shutdown();
                return Err(e);
            }
        }
        Ok(nodes)
    }

    async fn add_node(&mut self, cpts: &Arc<CptTable>, mgs: &[Nid], net: &Net) -> Result<()> {
        let config = LnetConfig::default();
        let choose = || net::client_endpoint(net, &config, mgs);
        let (_, lnet) = Lnet::start(cpts, &config, net.listen.is_none(), choose).await?;
        self.nodes.push(Node::start(
            lnet,
            NodeConfig {
                follow_mgs_params: false,
                ..NodeConfig::new(RandomSource::system())
            },
        )?);
        Ok(())
    }

    /// Mounts a file system `mounts_per_node` times on each of the first `nodes` nodes. The result
    /// has the first client of every node before the second clients.
    pub(super) fn mount(
        &self,
        mgs: &[Nid],
        fsname: &str,
        nodes: usize,
        mounts_per_node: usize,
    ) -> Result<Vec<Arc<Client>>> {
        let mut mount_tasks = JoinSet::new();
        let nodes = self.nodes.iter().take(nodes);
        let node_of_each_mount = std::iter::repeat_n(nodes, mounts_per_node).flatten().cloned();
        for (index, node) in node_of_each_mount.enumerate() {
            let options = MountOptions {
                params: self.params.clone(),
                ..node.mount_options(mgs.to_vec(), fsname)?
            };
            mount_tasks.spawn_on(async move { (index, node.mount(options).await) }, &self.runtime);
        }
        let results = self.runtime.block_on(mount_tasks.join_all());
        let mut clients: Vec<(usize, Arc<Client>)> = Vec::new();
        let mut error = None;
        for (index, result) in results {
            match result {
                Ok(client) => clients.push((index, client)),
                Err(e) => error = Some(e),
            }
        }
        clients.sort_by_key(|(index, _)| *index);
        let clients: Vec<Arc<Client>> = clients.into_iter().map(|(_, client)| client).collect();
        match error {
            None => Ok(clients),
            Some(e) => {
                self.umount(&clients);
                Err(e.into())
            }
        }
    }

    /// Unmounts clients.
    pub(super) fn umount(&self, clients: &[Arc<Client>]) {
        let mut umount_tasks = JoinSet::new();
        for client in clients {
            let client = client.clone();
            umount_tasks.spawn_on(async move { client.umount().await }, &self.runtime);
        }
        self.runtime.block_on(umount_tasks.join_all());
    }

    /// Stops all nodes.
    pub(super) fn shutdown(&self) {
        self.runtime.block_on(async {
            for node in &self.nodes {
                // Only the stop of an MGS can fail.
                let _ = node.stop().await;
            }
        });
    }
}

/// Clients without a kernel mount, all on one LNet node.
pub(super) struct Library {
    /// Independent clients, each with its own connections and cache.
    pub(super) clients: Vec<Arc<Client>>,
    /// The runtime that runs the calls of the clients.
    pub(super) runtime: Handle,
    nodes: Nodes,
    cpts: Arc<CptTable>,
}

impl Library {
    /// Mounts a file system `count` times.
    pub(super) fn mount(mgs: &[Nid], fsname: &str, net: &Net, count: usize) -> Result<Library> {
        let cpts = CptTable::build(&CptConfig::default())?;
        let nodes = Nodes::start(&cpts, mgs, net, 1)?;
        let clients = match nodes.mount(mgs, fsname, 1, count) {
            Ok(clients) => clients,
            Err(e) => {
                nodes.shutdown();
                return Err(e);
            }
        };
        Ok(Library {
            clients,
            runtime: nodes.runtime.clone(),
            nodes,
            cpts,
        })
    }

    /// The parameters of the clients.
    pub(super) fn params(&self) -> Registry {
        self.nodes.params.clone()
    }

    /// Unmounts all clients and stops the node.
    pub(super) fn umount(self) {
        self.nodes.umount(&self.clients);
        self.nodes.shutdown();
        self.cpts.shutdown();
    }
}
