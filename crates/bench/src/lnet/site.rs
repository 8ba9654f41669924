//! The nodes of a measurement: one server and its clients, each a stack of its own at an address of its own, and a console.

use super::{Measured, Point, Times, watch};
use crate::BenchError;
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use lst::console::{Command, CommandOutput, Console, SessionConfig, TestRequest, parse_test};
use lst::{Node, Settings};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use wire::Nid;

/// A batch's name.
const BATCH: &str = "batch";

/// A node here.
struct Here {
    lnet: Arc<Lnet>,
    node: Arc<Node>,
}

/// Nodes in this process.
pub struct Site {
    cpts: Arc<CptTable>,
    console: Here,
    /// The server, unless it is elsewhere.
    server: Option<Here>,
    server_nid: Nid,
    /// The process that it is in, if that is another.
    others: Vec<u32>,
    clients: Vec<Here>,
}

impl Site {
    /// One server, unless there is one elsewhere (where, and its process), and so many clients on `cpts`, from address `base` on.
    pub fn start(
        cpts: Arc<CptTable>,
        config: &LnetConfig,
        base: Ipv4Addr,
        elsewhere: Option<(Nid, u32)>,
        clients: usize,
    ) -> Result<Site, BenchError> {
        let runtime = cpts.get(cpt::CptId(0)).handle().clone();
        runtime.block_on(async {
            let at = |i: u32| Nid::tcp(Ipv4Addr::from_bits(base.to_bits() + i), 0);
            let server = match elsewhere {
                Some(_) => None,
                None => Some(Here::start(&cpts, config, at(1)).await?),
            };
            let mut site = Site {
                cpts: cpts.clone(),
                console: Here::start(&cpts, config, at(0)).await?,
                server,
                server_nid: elsewhere.map_or(at(1), |(nid, _)| nid),
                others: elsewhere.into_iter().map(|(_, pid)| pid).collect(),
                clients: Vec::new(),
            };
            for i in 0..clients as u32 {
                site.clients.push(Here::start(&cpts, config, at(2 + i)).await?);
            }
            Ok(site)
        })
    }

    /// Where it runs.
    pub fn runtime(&self) -> &Handle {
        self.cpts.get(cpt::CptId(0)).handle()
    }

    /// Ends all nodes.
    pub fn shutdown(self) {
        self.runtime().block_on(async {
            for here in self.clients.iter().chain(&self.server).chain([&self.console]) {
                here.lnet.shutdown().await;
            }
        });
    }

    /// Runs one test in a session of its own.
    pub(super) async fn measure(&self, point: Point, times: Times) -> Result<Measured, BenchError> {
        let wanted = SessionConfig {
            name: "bench".to_owned(),
            key: 1,
            timeout: Duration::from_secs(3600),
            force: true,
            feats: wire::LST_FEATS_MASK,
        };
        let failed = |why: String| BenchError::Network {
            what: point.load.name(),
            why,
        };
        let console = Console::start(self.console.node.clone(), wanted).map_err(|e| failed(e.to_string()))?;
        let clients = self
            .clients
            .get(..point.clients)
            .ok_or_else(|| failed("there are fewer clients".to_owned()))?;
        let nids = clients.iter().map(|here| here.lnet.nid()).collect();
        for (name, nids) in [("clients", nids), ("servers", vec![self.server_nid])] {
            let ids = nids.iter().map(Nid::to_string).collect();
            let name = name.to_owned();
            said(console.execute(Command::AddGroup { name, ids }).await).map_err(failed)?;
        }
        let words: Vec<String> = point.load.words().split_whitespace().map(str::to_owned).collect();
        let test = TestRequest {
            batch: BATCH.to_owned(),
            loops: -1,
            concurrency: point.concurrency as u32,
            dist: 1,
            span: 1,
            from: "clients".to_owned(),
            to: "servers".to_owned(),
            kind: parse_test(&words).map_err(failed)?,
        };
        said(console.execute(Command::AddTest(test)).await).map_err(failed)?;
        let name = BATCH.to_owned();
        said(console.execute(Command::Run { name, timeout_s: 0 }).await).map_err(failed)?;
        // Who writes sends its data as well as its request.
        let sent_each = if point.load.writes() { 2 } else { 1 };
        let counts = || {
            clients
                .iter()
                .map(|c| u64::from(c.lnet.counters().lcc_send_count) / sent_each)
                .collect()
        };
        let measured = watch(times, &self.others, counts).await;
        let name = BATCH.to_owned();
        said(console.execute(Command::Stop { name, force: false }).await).map_err(failed)?;
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
        said(console.execute(Command::EndSession).await).map_err(failed)?;
        Ok(measured)
    }
}

impl Here {
    async fn start(cpts: &Arc<CptTable>, config: &LnetConfig, nid: Nid) -> Result<Here, BenchError> {
        let lnet = Lnet::new(cpts.clone(), config.clone());
        lnet.add_tcp(nid, true).await.map_err(|e| BenchError::Network {
            what: nid.to_string(),
            why: e.to_string(),
        })?;
        let node = Arc::new(Node::start(&lnet, &Settings::default()));
        Ok(Here { lnet, node })
    }
}

fn said(said: CommandOutput) -> Result<(), String> {
    if said.ok {
        Ok(())
    } else {
        Err(said.err.trim_end().to_owned())
    }
}
