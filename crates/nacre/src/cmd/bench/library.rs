//! Clients in this process, without a kernel between.

use std::sync::Arc;

use anyhow::{Context, Result};
use client::{Client, MountOptions};
use cpt::{CptConfig, CptTable};
use lnet::{Lnet, LnetConfig};
use rpc::{Ptlrpc, RpcConfig};
use tokio::runtime::Handle;
use wire::Nid;

use crate::cli::Net;
use crate::net;
use crate::node::random;

/// Mounts without a kernel, in this process.
pub(super) struct Library {
    /// Each a client of its own, as if it were another node's.
    pub(super) clients: Vec<Arc<Client>>,
    /// Where their calls run.
    pub(super) runtime: Handle,
    rpc: Arc<Ptlrpc>,
    lnet: Arc<Lnet>,
    cpts: Arc<CptTable>,
}

impl Library {
    /// Mounts a file system `count` times.
    pub(super) fn mount(mgs: &[Nid], fsname: &str, net: &Net, count: usize) -> Result<Library> {
        let config = LnetConfig::default();
        let cpts = CptTable::build(&CptConfig::default())?;
        let runtime = cpts
            .iter()
            .next()
            .context("there is no CPU partition")?
            .handle()
            .clone();
        let seed = random()?;
        let (lnet, rpc) = runtime.block_on(async {
            let choose = || net::for_client(net, &config, mgs);
            let (_, lnet) = Lnet::start(&cpts, &config, net.listen.is_none(), choose).await?;
            let config = RpcConfig {
                seed,
                ..RpcConfig::default()
            };
            let rpc = Ptlrpc::start(lnet.clone(), cpts.clone(), config);
            anyhow::Ok((lnet, rpc))
        })?;
        let mut library = Library {
            clients: Vec::new(),
            runtime,
            rpc,
            lnet,
            cpts,
        };
        for _ in 0..count {
            let options = MountOptions::new(mgs.to_vec(), fsname, random()?);
            match library.runtime.block_on(Client::mount(&library.rpc, options)) {
                Ok(client) => library.clients.push(client),
                Err(e) => {
                    library.umount();
                    return Err(e.into());
                }
            }
        }
        Ok(library)
    }

    /// Unmounts them all and leaves the network.
    pub(super) fn umount(self) {
        self.runtime.block_on(async {
            for client in &self.clients {
                client.umount().await;
            }
            self.rpc.shutdown().await;
            self.lnet.shutdown().await;
        });
        self.cpts.shutdown();
    }
}
