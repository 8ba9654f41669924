//! Interfaces, peers and requests on several CPU partitions, possibly more than this machine has
//! CPUs.
#![allow(clippy::unwrap_used)]

use cpt::{CptConfig, CptId, CptTable};
use lnet::{IncomingPut, Lnet, LnetConfig, LnetError, NiSpec, Payload, PortalRotor, PutSink};
use std::future::Future;
use std::sync::Arc;
use testbase::sockets::{LIMIT, Queue, config, nid_maker, pattern, until};
use tokio::sync::mpsc;
use wire::Nid;

fn on_partitions<F: Future<Output = ()>>(n: usize, test: impl FnOnce(Arc<CptTable>) -> F) {
    let cfg = CptConfig {
        cpu_npartitions: n,
        force_partitions: true,
        ..CptConfig::default()
    };
    let cpts = CptTable::build(&cfg).unwrap();
    tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(test(cpts.clone()));
    cpts.shutdown();
}

fn spec_on(nid: Nid, cpts: &[usize]) -> NiSpec {
    NiSpec {
        cpts: Some(cpts.to_vec()),
        ..NiSpec::new(nid)
    }
}

/// Sends one request from each of these NIDs; returns the sender and the partition of each request.
async fn arrivals(server: &Arc<Lnet>, to: Nid, from: &[Nid]) -> Vec<(Nid, CptId)> {
    let (send, mut requests) = mpsc::channel::<IncomingPut>(64);
    let _portal = server.serve_portal(12, Arc::new(Queue(send)));
    let mut arrivals = Vec::new();
    for nid in from {
        let client = Lnet::new(CptTable::single_current(), config());
        client.add_tcp(*nid, true).await.unwrap();
        client.put(to, 12, 1, 0, 0, Payload::new(), false).await.unwrap();
        let request = tokio::time::timeout(LIMIT, requests.recv())
            .await
            .unwrap()
            .unwrap();
        arrivals.push((request.from, request.cpt));
        client.shutdown().await;
    }
    arrivals
}

#[test]
fn the_nid_of_a_peer_selects_a_partition_of_its_interface() {
    on_partitions(4, async |cpts| {
        let nid = nid_maker();
        let server = Lnet::new(cpts, config());
        server.add_ni(&spec_on(nid(1, 0), &[2, 3])).unwrap();
        server.add_ni(&spec_on(nid(1, 1), &[0])).unwrap();
        server.add_ni(&NiSpec::new(nid(1, 2))).unwrap();
        for (net, cpts) in [(0, vec![2, 3]), (1, vec![0]), (2, vec![0, 1, 2, 3])] {
            let clients: Vec<Nid> = (10..15).map(|n| nid(n, net)).collect();
            for (from, cpt) in arrivals(&server, nid(1, net), &clients).await {
                let hash: usize = from.0.to_be_bytes().iter().map(|&b| usize::from(b)).sum();
                assert_eq!(cpt.0, cpts[hash % cpts.len()], "{from}");
                assert_eq!(server.cpt_of(from), cpt);
            }
        }
        let table = server.nis_table();
        // The heading, `0@lo`, and each partition of the three interfaces.
        assert_eq!(table.lines().count(), 2 + 2 + 1 + 4, "{table}");
        let error = server.add_ni(&spec_on(nid(2, 3), &[1, 4])).unwrap_err();
        assert!(
            matches!(error, LnetError::Ni { .. }) && error.to_string().contains("partition 4"),
            "{error}"
        );
        server.shutdown().await;
    });
}

#[test]
fn the_rotor_distributes_unrouted_requests_only_if_it_is_on() {
    on_partitions(3, async |cpts| {
        let nid = nid_maker();
        let server = Lnet::new(cpts, config());
        server.add_ni(&spec_on(nid(1, 0), &[0])).unwrap();
        let (send, mut requests) = mpsc::channel::<IncomingPut>(64);
        let _portal = server.serve_portal(12, Arc::new(Queue(send)));
        let client = Lnet::new(CptTable::single_current(), config());
        client.add_tcp(nid(2, 0), true).await.unwrap();
        let mut partitions = async |mode: &str| {
            server.set_portal_rotor(mode.parse::<PortalRotor>().unwrap());
            let mut partitions = Vec::new();
            for _ in 0..6 {
                client
                    .put(nid(1, 0), 12, 1, 0, 0, Payload::new(), true)
                    .await
                    .unwrap();
                partitions.push(requests.recv().await.unwrap().cpt.0);
            }
            partitions
        };
        assert_eq!(partitions("OFF").await, [0; 6]);
        assert_eq!(partitions("ON").await, [0, 1, 2, 0, 1, 2]);
        assert_eq!(partitions("HASH_RT").await, [0; 6], "the requests are not routed");
        assert!(server.rotor_text().contains("rotor: HASH_RT"));
        server.shutdown().await;
    });
}

/// A sink with a service that runs on `cpts` only.
struct RestrictedSink {
    queue: Queue,
    cpts: Vec<CptId>,
}

impl PutSink for RestrictedSink {
    fn put(&self, request: IncomingPut) -> Result<(), lnet::SinkFull> {
        self.queue.put(request)
    }
    fn wait_for_space(&self) -> lnet::BoxFuture<'_, ()> {
        self.queue.wait_for_space()
    }
    fn cpts(&self) -> Option<Vec<CptId>> {
        Some(self.cpts.clone())
    }
}

#[test]
fn the_rotor_uses_only_the_partitions_of_the_service() {
    on_partitions(4, async |cpts| {
        let node = Lnet::new(
            cpts,
            LnetConfig {
                portal_rotor: PortalRotor::On,
                ..config()
            },
        );
        let (send, mut requests) = mpsc::channel::<IncomingPut>(64);
        let sink = RestrictedSink {
            queue: Queue(send),
            cpts: vec![CptId(1), CptId(3)],
        };
        let _portal = node.serve_portal(12, Arc::new(sink));
        let mut requests_by_cpt = [0; 4];
        for _ in 0..20 {
            node.put(Nid::LO, 12, 1, 0, 0, Payload::new(), false)
                .await
                .unwrap();
            requests_by_cpt[requests.recv().await.unwrap().cpt.0] += 1;
        }
        assert!(
            requests_by_cpt[0] == 0
                && requests_by_cpt[2] == 0
                && requests_by_cpt[1] > 0
                && requests_by_cpt[3] > 0,
            "{requests_by_cpt:?}"
        );
    });
}

#[test]
fn conns_per_peer_sets_the_number_of_bulk_connections() {
    on_partitions(2, async |cpts| {
        let nid = nid_maker();
        let cfg = LnetConfig {
            conns_per_peer: 3,
            ..config()
        };
        let nodes = [1, 2].map(|n| {
            let node = Lnet::new(cpts.clone(), cfg.clone());
            node.add_ni(&NiSpec::new(nid(n, 0))).unwrap();
            node
        });
        let (send, mut requests) = mpsc::channel::<IncomingPut>(64);
        let _portal = nodes[1].serve_portal(12, Arc::new(Queue(send)));
        nodes[0].ping(nid(2, 0), LIMIT).await.unwrap();
        until(
            "one control connection, and three for bulk in each direction",
            || nodes[0].show_peers()[0].connections == 7,
        )
        .await;
        for i in 0..30 {
            nodes[0]
                .put(nid(2, 0), 12, i, 0, i, pattern(200_000, i as u8).into(), true)
                .await
                .unwrap();
            let request = requests.recv().await.unwrap();
            assert!(request.payload.into_bytes() == pattern(200_000, i as u8));
        }
        let peer_info = &nodes[0].show_peers()[0];
        let (puts_sent, acks_received) = (peer_info.counts.sent[1], peer_info.counts.received[0]);
        let credits_left = peer_info.credits.left;
        assert_eq!((puts_sent, acks_received, credits_left), (30, 30, 8));
        for node in nodes {
            node.shutdown().await;
        }
    });
}
