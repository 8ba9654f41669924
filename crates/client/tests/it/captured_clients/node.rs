//! A client's node: sends captured requests and collects the replies.

use crate::captured_clients::servers::start_node;
use lnet::{IncomingPut, Lnet, MatchEntry, Md, MdEvent, MdHandle, Payload, PortalGuard, PutSink, SinkFull};
use rpc::BoxFuture;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use wire::msg::EARLY_REPLY_SIZE;
use wire::{Message, Nid};

/// The portals for replies.
const REPLY_PORTALS: [u32; 5] = [
    wire::OSC_REPLY_PORTAL,
    wire::MDC_REPLY_PORTAL,
    wire::LDLM_CANCEL_REPLY_PORTAL,
    wire::MGC_REPLY_PORTAL,
    wire::LDLM_CB_REPLY_PORTAL,
];

/// Receives the callbacks for the client with this captured NID. The queue has no limit, because a
/// run causes few callbacks.
struct Callbacks(Nid, mpsc::UnboundedSender<Callback>);

impl PutSink for Callbacks {
    fn put(&self, incoming: IncomingPut) -> Result<(), SinkFull> {
        let msg = Message::parse(&incoming.payload.clone().into_bytes()).unwrap();
        let callback = Callback {
            client: self.0,
            from: incoming.from,
            xid: incoming.match_bits,
            msg,
        };
        self.1.send(callback).map_err(|_| SinkFull(incoming))
    }
    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// A sent request, until the test takes its reply and bulk.
struct PendingRequest {
    reply: mpsc::UnboundedReceiver<Message>,
    bulk: Vec<MdHandle>,
}

/// A server's request to this client.
pub(crate) struct Callback {
    /// The client's captured NID.
    pub(crate) client: Nid,
    /// The server's NID in this run.
    pub(crate) from: Nid,
    pub(crate) xid: u64,
    pub(crate) msg: Message,
}

/// A client's node.
pub(crate) struct Node {
    pub(crate) lnet: Arc<Lnet>,
    pending: HashMap<u64, PendingRequest>,
    _portal: PortalGuard,
}

/// A bulk buffer: portal and match bits, and the data if the server fetches it.
pub(crate) struct BulkBuffer {
    pub(crate) portal: u32,
    pub(crate) match_bits: u64,
    pub(crate) data: Option<bytes::Bytes>,
}

impl Node {
    pub(crate) async fn start(nid: Nid, callbacks: mpsc::UnboundedSender<Callback>) -> Node {
        let lnet = start_node(nid).await;
        let _portal = lnet.serve_portal(wire::LDLM_CB_REQUEST_PORTAL, Arc::new(Callbacks(nid, callbacks)));
        Node {
            lnet,
            pending: HashMap::new(),
            _portal,
        }
    }

    /// Sends a request.
    pub(crate) async fn send(
        &mut self,
        to: Nid,
        portal: u32,
        xid: u64,
        msg: &Message,
        bulk: Vec<BulkBuffer>,
    ) {
        let entry = |portal, match_bits| MatchEntry {
            portal,
            match_bits,
            from: None,
        };
        let bulk = bulk.into_iter().map(|b| {
            let md = match b.data {
                Some(data) => Md::Source(Payload::from(data)),
                None => Md::Sink { max_len: 4 << 20 },
            };
            self.lnet.attach(entry(b.portal, b.match_bits), md)
        });
        let bulk = bulk.collect();
        let (sender, reply) = mpsc::unbounded_channel();
        let reply_offset = offset_of_reply(msg);
        for portal in REPLY_PORTALS {
            let mut buffer = self
                .lnet
                .attach(entry(portal, xid), Md::Sink { max_len: 1 << 20 });
            let sender = sender.clone();
            tokio::spawn(async move {
                loop {
                    let event = tokio::select! {
                        event = buffer.next() => event,
                        () = sender.closed() => return,
                    };
                    let Some(MdEvent::Put { payload, offset, .. }) = event else {
                        return;
                    };
                    // Messages below this offset are early replies, which only extend the deadline.
                    if offset >= reply_offset {
                        let _ = sender.send(Message::parse(&payload.into_bytes()).unwrap());
                    }
                }
            });
        }
        self.pending.insert(xid, PendingRequest { reply, bulk });
        self.lnet
            .put(to, portal, xid, 0, 0, Payload::from(msg.build()), false)
            .await
            .unwrap();
    }

    /// Whether a request was sent and [`Node::take_bulk`] has not been called for it.
    pub(crate) fn waits_for(&self, xid: u64) -> bool {
        self.pending.contains_key(&xid)
    }

    /// Waits for the final reply to a request.
    pub(crate) async fn wait_for_reply(&mut self, xid: u64) -> Message {
        self.pending.get_mut(&xid).unwrap().reply.recv().await.unwrap()
    }

    /// Takes the data that the server has put for a request. Called after the reply; the request is
    /// then no longer pending.
    pub(crate) fn take_bulk(&mut self, xid: u64) -> bytes::Bytes {
        let mut pending = self.pending.remove(&xid).unwrap();
        let mut data = Vec::new();
        for buffer in &mut pending.bulk {
            while let Some(event) = buffer.try_next() {
                if let MdEvent::Put { payload, .. } = event {
                    data.extend_from_slice(&payload.into_bytes());
                }
            }
        }
        data.into()
    }

    /// Answers a callback.
    pub(crate) async fn answer(&self, to: &Callback, msg: &Message) {
        let offset = offset_of_reply(&to.msg);
        let payload = Payload::from(msg.build());
        let sent = self.lnet.put(
            to.from,
            wire::LDLM_CB_REPLY_PORTAL,
            to.xid,
            offset,
            0,
            payload,
            false,
        );
        sent.await.unwrap();
    }
}

/// The offset of the final reply: after the space for an early reply, if the sender reserves it.
fn offset_of_reply(msg: &Message) -> u32 {
    if msg.flags & wire::MSGHDR_AT_SUPPORT != 0 {
        EARLY_REPLY_SIZE as u32
    } else {
        0
    }
}
