//! An LNet selftest node in memory and a misbehaving console. The console sends the messages of the
//! input to the node's portals, and offers the input as bulk data. At the end another console must
//! get a reply.

use std::sync::Arc;

use bytes::Bytes;
use cpt::CptTable;
use lnet::{Lnet, LnetConfig, MatchEntry, Md};
use lst::{Node, Settings};
use tokio::time::{Duration, sleep, timeout};
use wire::{
    LstSid, Nid, SRPC_FRAMEWORK_REQUEST_PORTAL, SRPC_RDMA_PORTAL, SRPC_REQUEST_PORTAL,
    SRPC_SERVICE_MAKE_SESSION, Selftest, SrpcBody, SrpcMksnReqst, SrpcMsg, WireStruct,
};

/// Maximum number of messages in an input.
const MESSAGES_MAX: usize = 16;
/// Maximum time that the other console waits for the reply: longer than all timeouts of a node.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1000);

/// Sends an input, and checks that the node still answers.
pub fn serve(input: &[u8]) {
    let messages = input.chunks_exact(SrpcMsg::SIZE);
    for bytes in messages.clone() {
        if let Ok(message) = Selftest::parse(bytes) {
            assert_eq!(Selftest::parse(&message.build()), Ok(message));
        }
    }
    run(async {
        let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
        let node = Node::start(&lnet, &Settings::default());
        for bytes in messages.take(MESSAGES_MAX) {
            send(&lnet, bytes, input).await;
        }
        let mksn = SrpcMksnReqst {
            mksn_rpyid: 1,
            mksn_sid: LstSid {
                ses_nid: Nid(0x0002_0000_0a00_0001),
                ses_stamp: 1,
            },
            mksn_force: 1,
            ..SrpcMksnReqst::default()
        };
        let mut reply = lnet.attach(
            entry(1),
            Md::Sink {
                max_len: SrpcMsg::SIZE as u32,
            },
        );
        put_message(
            &lnet,
            SRPC_SERVICE_MAKE_SESSION.into(),
            Selftest::new(0, mksn).build(),
        )
        .await;
        let event = timeout(REPLY_TIMEOUT, reply.next()).await;
        assert!(matches!(event, Ok(Some(_))), "the node does not answer");
        drop(node);
        lnet.shutdown().await;
    });
}

/// Runs a future with virtual time.
fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(work)
}

/// The match entry for a reply or bulk data.
fn entry(match_bits: u64) -> MatchEntry {
    MatchEntry {
        portal: SRPC_RDMA_PORTAL,
        match_bits,
        from: None,
    }
}

/// Sends one message to its service, and attaches data for a bulk GET.
async fn send(lnet: &Arc<Lnet>, bytes: &[u8], input: &[u8]) {
    let parsed = Selftest::parse(bytes).ok();
    let bulkid = match parsed.as_ref().map(|m| &m.body) {
        Some(SrpcBody::TestReqst(test)) => test.tsr_bulkid,
        Some(SrpcBody::BrwReqst(brw)) => brw.brw_bulkid,
        _ => 0,
    };
    let data = Bytes::copy_from_slice(input);
    let _source = lnet.attach(entry(bulkid), Md::Source(data.into()));
    let service = parsed.and_then(|m| m.body.service()).unwrap_or(0);
    put_message(lnet, service.into(), Bytes::copy_from_slice(bytes)).await;
    // Time is virtual: all pending work completes before the sleep ends.
    sleep(Duration::from_secs(1)).await;
}

async fn put_message(lnet: &Arc<Lnet>, service: u64, bytes: Bytes) {
    let portal = if service < wire::SRPC_FRAMEWORK_SERVICE_MAX_ID.into() {
        SRPC_FRAMEWORK_REQUEST_PORTAL
    } else {
        SRPC_REQUEST_PORTAL
    };
    // Ignore errors; the final request detects a failed node.
    let _ = lnet
        .put(Nid::LO, portal, service, 0, 0, bytes.into(), false)
        .await;
}
