//! The nodes of a measurement: a server, clients, and a console, each with its own LNet stack and
//! address.

use super::{Measurement, Point, Times, measure_interval};
use crate::BenchError;
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use lst::{Node, Settings};
use lst_console::{Command, CommandOutput, Console, SessionConfig, TestRequest, parse_test};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use wire::Nid;

/// Name of the batch with the test.
const BATCH: &str = "batch";

/// A node of LNet selftest in this process.
struct SiteNode {
    lnet: Arc<Lnet>,
    node: Arc<Node>,
}

/// The nodes of a measurement.
pub struct Site {
    cpts: Arc<CptTable>,
    console: SiteNode,
    /// The server, unless it is in another process.
    server: Option<SiteNode>,
    server_nid: Nid,
    /// Process id of the server if it has a process of its own; otherwise empty.
    others: Vec<u32>,
    clients: Vec<SiteNode>,
}

impl Site {
    /// Starts the console, the server and the clients on `cpts`, with consecutive addresses from
    /// `base` in this order. `remote_server`: NID and process id of a server in another process;
    /// the site then starts none.
    ///
    /// # Errors
    ///
    /// An address cannot be used.
    pub fn start(
        cpts: Arc<CptTable>,
        config: &LnetConfig,
        base: Ipv4Addr,
        remote_server: Option<(Nid, u32)>,
        clients: usize,
    ) -> Result<Site, BenchError> {
        let runtime = cpts.get(cpt::CptId(0)).handle().tokio().clone();
        runtime.block_on(async {
            let nth_nid = |i: u32| Nid::tcp(Ipv4Addr::from_bits(base.to_bits() + i), 0);
            let server = match remote_server {
                Some(_) => None,
                None => Some(SiteNode::start(&cpts, config, nth_nid(1)).await?),
            };
            let mut site = Site {
                cpts: cpts.clone(),
                console: SiteNode::start(&cpts, config, nth_nid(0)).await?,
                server,
                server_nid: remote_server.map_or(nth_nid(1), |(nid, _)| nid),
                others: remote_server.into_iter().map(|(_, pid)| pid).collect(),
                clients: Vec::new(),
            };
            for i in 0..clients as u32 {
                site.clients
                    .push(SiteNode::start(&cpts, config, nth_nid(2 + i)).await?);
            }
            Ok(site)
        })
    }

    /// The runtime of the first CPU partition, which runs the measurements.
    pub fn runtime(&self) -> &Handle {
        self.cpts.get(cpt::CptId(0)).handle().tokio()
    }

    /// Stops all nodes.
    pub fn shutdown(self) {
        self.runtime().block_on(async {
            for node in self.clients.iter().chain(&self.server).chain([&self.console]) {
                node.lnet.shutdown().await;
            }
        });
    }

    /// Measures one point in a new session.
    pub(super) async fn measure(&self, point: Point, times: Times) -> Result<Measurement, BenchError> {
        let config = SessionConfig {
            name: "bench".to_owned(),
            key: 1,
            timeout: Duration::from_secs(3600),
            force: true,
            feats: wire::LST_FEATS_MASK,
        };
        let failed = |reason: String| BenchError::Network {
            object: point.load.name(),
            reason,
        };
        let console = Console::start(self.console.node.clone(), config).map_err(|e| failed(e.to_string()))?;
        let clients = self.clients.get(..point.clients).ok_or_else(|| {
            failed(format!(
                "the load needs {} clients, the site has {}",
                point.clients,
                self.clients.len()
            ))
        })?;
        let nids = clients.iter().map(|node| node.lnet.nid()).collect();
        for (name, nids) in [("clients", nids), ("servers", vec![self.server_nid])] {
            let ids = nids.iter().map(Nid::to_string).collect();
            let name = name.to_owned();
            check(console.execute(Command::AddGroup { name, ids }).await).map_err(failed)?;
        }
        let test_args: Vec<String> = point
            .load
            .add_test_args()
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let test = TestRequest {
            batch: BATCH.to_owned(),
            loops: -1,
            concurrency: point.concurrency as u32,
            dist: 1,
            span: 1,
            from: "clients".to_owned(),
            to: "servers".to_owned(),
            kind: parse_test(&test_args).map_err(failed)?,
        };
        check(console.execute(Command::AddTest(test)).await).map_err(failed)?;
        let name = BATCH.to_owned();
        check(console.execute(Command::Run { name, timeout_s: 0 }).await).map_err(failed)?;
        // A writing client sends two messages for each request: the request and its data.
        let messages_per_request = if point.load.is_write() { 2 } else { 1 };
        let counts = || {
            clients
                .iter()
                .map(|c| u64::from(c.lnet.counters().lcc_send_count) / messages_per_request)
                .collect()
        };
        let measured = measure_interval(times, &self.others, counts).await;
        let name = BATCH.to_owned();
        check(console.execute(Command::Stop { name, force: false }).await).map_err(failed)?;
        let names = vec!["clients".to_owned()];
        let errors = console
            .execute(Command::ShowError {
                names,
                session_only: true,
            })
            .await;
        if !errors.err.is_empty() {
            return Err(failed(errors.err));
        }
        check(console.execute(Command::EndSession).await).map_err(failed)?;
        Ok(measured)
    }
}

impl SiteNode {
    async fn start(cpts: &Arc<CptTable>, config: &LnetConfig, nid: Nid) -> Result<SiteNode, BenchError> {
        let lnet = Lnet::new(cpts.clone(), config.clone());
        lnet.add_tcp(nid, true).await.map_err(|e| BenchError::Network {
            object: nid.to_string(),
            reason: e.to_string(),
        })?;
        let node = Arc::new(Node::start(&lnet, &Settings::default()));
        Ok(SiteNode { lnet, node })
    }
}

/// Converts the output of a failed console command to its error text.
fn check(output: CommandOutput) -> Result<(), String> {
    if output.ok {
        Ok(())
    } else {
        Err(output.err.trim_end().to_owned())
    }
}
