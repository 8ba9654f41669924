//! One node that is its own peer, through the driver `lo`.
#![allow(clippy::unwrap_used)]

use super::Lnet;
use crate::{IncomingPut, LnetConfig, LnetError, MatchEntry, Md, MdEvent, Payload, PutSink, SinkFull};
use bytes::Bytes;
use cpt::{BoxFuture, CptTable};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use wire::Nid;

/// A sink with the capacity of its channel.
struct ChannelSink(mpsc::Sender<IncomingPut>);

impl PutSink for ChannelSink {
    fn put(&self, request: IncomingPut) -> Result<(), SinkFull> {
        self.0.try_send(request).map_err(|e| SinkFull(e.into_inner()))
    }
    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            while self.0.capacity() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }
}

fn node() -> Arc<Lnet> {
    Lnet::new(CptTable::single_current(), LnetConfig::default())
}

fn match_entry(portal: u32, match_bits: u64) -> MatchEntry {
    MatchEntry {
        portal,
        match_bits,
        from: Some(Nid::LO),
    }
}

#[tokio::test]
async fn a_put_to_this_node_copies_no_data() {
    let node = node();
    let mut buffer = node.attach(match_entry(4, 7), Md::Sink { max_len: 100 });
    let bytes = Bytes::from(vec![1; 50]);
    let done = node
        .put(Nid::LO, 4, 7, 10, 0, bytes.clone().into(), true)
        .await
        .unwrap();
    assert_eq!(done.mlength, 50);
    let Some(MdEvent::Put {
        payload, offset: 10, ..
    }) = buffer.next().await
    else {
        panic!()
    };
    assert_eq!(payload.into_bytes().as_ptr(), bytes.as_ptr());
}

#[tokio::test]
async fn a_get_from_this_node_copies_no_data() {
    let node = node();
    let bytes = Bytes::from(vec![1; 50]);
    let _buffer = node.attach(match_entry(4, 7), Md::Source(bytes.clone().into()));
    let payload = node.get(Nid::LO, 4, 7, 0, 50).await.unwrap();
    assert_eq!(payload.into_bytes().as_ptr(), bytes.as_ptr());
}

#[tokio::test]
async fn unmatched_operations_that_need_an_answer_fail_at_once() {
    let node = node();
    assert!(matches!(
        node.get(Nid::LO, 4, 7, 0, 50).await,
        Err(LnetError::Unmatched { .. })
    ));
    assert!(node.put(Nid::LO, 4, 7, 0, 0, Payload::new(), true).await.is_err());
    assert!(node.put(Nid::LO, 4, 7, 0, 0, Payload::new(), false).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_full_sink_blocks_the_sender_until_it_has_space() {
    let node = node();
    let (send, mut requests) = mpsc::channel(1);
    let _portal = node.serve_portal(12, Arc::new(ChannelSink(send)));
    let put = || node.put(Nid::LO, 12, 1, 0, 0, Payload::new(), false);
    put().await.unwrap();
    let second = tokio::time::timeout(Duration::from_secs(1), put()).await;
    assert!(second.is_err(), "a sender waits while the sink is full");
    let (third, ()) = tokio::join!(put(), async {
        requests.recv().await.unwrap();
    });
    third.unwrap();
    assert!(
        matches!(put().await, Err(LnetError::Timeout { .. })),
        "the transaction timeout ends the wait"
    );
}

#[tokio::test]
async fn a_dropped_guard_ends_the_service() {
    let node = node();
    let (send, _requests) = mpsc::channel(1);
    drop(node.serve_portal(12, Arc::new(ChannelSink(send))));
    assert!(
        node.put(Nid::LO, 12, 1, 0, 0, Payload::new(), true)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_node_pings_itself_until_shutdown_and_refuses_too_long_payloads() {
    let node = node();
    let info = node.ping(Nid::LO, Duration::from_secs(1)).await.unwrap();
    assert_eq!(info.nis[0].ns_nid, Nid::LO);
    let long = Payload::from(vec![0; (1 << 20) + 1]);
    assert!(matches!(
        node.put(Nid::LO, 4, 7, 0, 0, long, false).await,
        Err(LnetError::TooLong { .. })
    ));
    node.shutdown().await;
    assert!(matches!(
        node.ping(Nid::LO, Duration::from_secs(1)).await,
        Err(LnetError::ShutDown)
    ));
}
