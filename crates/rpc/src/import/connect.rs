//! Connect and disconnect requests (docs/protocol.md, "Connect flags").

use super::Import;
use super::machine::{Attempt, Outcome};
use crate::exchange::{ReplyBuffer, ReplyEvent, request_body};
use crate::fail::Stage;
use crate::{RpcError, at, opcode};
use bytes::Bytes;
use std::time::Duration;
use tokio::time::timeout;
use wire::format::bufs;
use wire::{
    Errno, LustreHandle, MSG_CONNECT_RECOVERING, Message, Nid, OBD_CONNECT_AT, OBD_CONNECT_BULK_MBITS,
    OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20, OBD_CONNECT2_REP_MBITS, ObdConnectData, PtlrpcBody, Transno,
    WireStruct,
};

/// Flags that this layer implements: every import requests them, every target grants them on
/// request.
pub(crate) const OWN_FLAGS: u64 =
    OBD_CONNECT_FULL20 | OBD_CONNECT_AT | OBD_CONNECT_BULK_MBITS | OBD_CONNECT_FLAGS2;
/// The same for `ocd_connect_flags2`.
pub(crate) const OWN_FLAGS2: u64 = OBD_CONNECT2_REP_MBITS;

/// Length of a UUID's buffer in bytes: one less than an `obd_uuid`.
const UUID_LEN: usize = 39;
/// Time limit of a disconnect.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for sending the request of a brief attempt ([`Attempt::brief`]). LNet keeps
/// connecting to the peer, for the next attempt.
const BRIEF_SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads connect data of any length: fields that an old peer does not send are zero.
pub(crate) fn parse_connect_data(buf: &[u8]) -> ObdConnectData {
    let mut whole = [0; ObdConnectData::SIZE];
    let len = buf.len().min(whole.len());
    whole[..len].copy_from_slice(&buf[..len]);
    ObdConnectData::from_bytes(&whole).expect("the buffer is as long as the structure")
}

/// A request buffer with a UUID.
fn uuid_buf(uuid: &str) -> Bytes {
    let mut buf = vec![0; UUID_LEN];
    let len = uuid.len().min(UUID_LEN - 1);
    buf[..len].copy_from_slice(&uuid.as_bytes()[..len]);
    buf.into()
}

impl Import {
    /// Makes one attempt to connect.
    pub(super) async fn connect_once(&self, attempt: Attempt) -> Outcome {
        let nid = self.core.lock().nids.get(attempt.nid_index).copied();
        let Some(nid) = nid else {
            return self.record_failure(Outcome::Refused, RpcError::NoNids(self.cfg.name.clone()));
        };
        self.core.lock().note_attempt(nid);
        let limit = self.rpc.config().connect_timeout;
        let no_answer = || RpcError::Net {
            peer: nid.to_string(),
            why: format!("no answer within {limit:?}"),
        };
        match timeout(limit, self.send_connect(nid, attempt))
            .await
            .unwrap_or_else(|_| Err(no_answer()))
        {
            Ok((msg, body)) => {
                self.core.lock().note_attempt_replied(nid);
                self.process_connect_reply(nid, &msg, &body)
            }
            Err(e) => self.record_failure(Outcome::Failed, e),
        }
    }

    /// Records why an attempt failed; returns `outcome`.
    pub(super) fn record_failure(&self, outcome: Outcome, why: RpcError) -> Outcome {
        tracing::debug!(import = self.name(), error = %why, "cannot connect");
        self.core.lock().last_error = Some(why);
        outcome
    }

    async fn send_connect(&self, nid: Nid, attempt: Attempt) -> Result<(Message, PtlrpcBody), RpcError> {
        let opc = opcode::connect_opcode(self.cfg.kind);
        let requested = self.requested_connect_data();
        let bufs = vec![
            uuid_buf(&self.cfg.target_uuid),
            uuid_buf(&self.cfg.client_uuid),
            LustreHandle { cookie: self.cookie }.to_bytes(),
            requested.to_bytes(),
            Bytes::new(),
        ];
        let body = PtlrpcBody {
            pb_handle: LustreHandle {
                cookie: attempt.handle,
            },
            pb_op_flags: if attempt.handle == 0 {
                wire::MSG_CONNECT_INITIAL
            } else {
                0
            },
            pb_conn_cnt: attempt.conn_cnt,
            pb_timeout: at::wire_secs(self.rpc.config().connect_timeout),
            ..request_body(opc)
        };
        let send_timeout = attempt.brief.then_some(BRIEF_SEND_TIMEOUT);
        let reply_len = (2 * ObdConnectData::SIZE) as u32;
        self.exchange_once(nid, body, bufs, reply_len, send_timeout).await
    }

    /// The connect data of the import's configuration, with the flags of this layer.
    fn requested_connect_data(&self) -> ObdConnectData {
        let mut requested = self.cfg.connect;
        requested.ocd_connect_flags |= OWN_FLAGS;
        requested.ocd_connect_flags2 |= OWN_FLAGS2;
        requested
    }

    fn process_connect_reply(&self, nid: Nid, msg: &Message, body: &PtlrpcBody) -> Outcome {
        if let Some(errno) = Errno::from_status(body.pb_status) {
            let outcome = match errno {
                Errno::EPROTO | Errno::EACCES | Errno::EPERM | Errno::EROFS => Outcome::Refused,
                _ => Outcome::Failed,
            };
            return self.record_failure(outcome, RpcError::Status(errno));
        }
        let (requested, data) = (
            self.requested_connect_data(),
            parse_connect_data(msg.buf(bufs::CONNECT_REPLY_DATA)),
        );
        let extra = data.ocd_connect_flags & !requested.ocd_connect_flags;
        let extra2 = match data.ocd_connect_flags & OBD_CONNECT_FLAGS2 {
            0 => 0,
            _ => data.ocd_connect_flags2 & !requested.ocd_connect_flags2,
        };
        let deviation = if body.pb_handle.cookie == 0 {
            Some(("a connect reply with a handle", "handle 0".to_owned()))
        } else if extra | extra2 != 0 {
            Some((
                "only requested connect flags",
                format!("the flags {extra:#x} {extra2:#x} in addition"),
            ))
        } else {
            None
        };
        if let Some((expected, found)) = deviation {
            let why = RpcError::Protocol {
                peer: format!("{} at {nid}", self.cfg.target_uuid),
                expected,
                found,
            };
            return self.record_failure(Outcome::Refused, why);
        }
        let old_instance = self.connect_data().ocd_instance;
        if old_instance != 0 && old_instance != data.ocd_instance {
            let mut core = self.core.lock();
            let committed = Transno(body.pb_last_committed);
            match body.pb_op_flags & MSG_CONNECT_RECOVERING {
                0 => core.uncommitted.note_restart(committed),
                _ => {
                    core.uncommitted.note_committed(committed);
                    core.is_unrecovered = true;
                }
            }
        }
        self.set_granted(data);
        Outcome::Connected {
            handle: body.pb_handle.cookie,
            op_flags: body.pb_op_flags,
        }
    }

    /// Tells the server that this client disconnects. Failures are ignored.
    pub(super) async fn send_disconnect(&self) {
        let opc = opcode::disconnect_opcode(self.cfg.kind);
        let (handle, conn_cnt) = {
            let core = self.core.lock();
            (core.machine.handle(), core.machine.conn_cnt())
        };
        let body = PtlrpcBody {
            pb_handle: LustreHandle { cookie: handle },
            pb_conn_cnt: conn_cnt,
            pb_timeout: at::wire_secs(DISCONNECT_TIMEOUT),
            ..request_body(opc)
        };
        let reply = timeout(
            DISCONNECT_TIMEOUT,
            self.exchange_once(self.peer(), body, Vec::new(), 0, None),
        )
        .await;
        tracing::debug!(
            import = self.name(),
            answered = matches!(reply, Ok(Ok(_))),
            "disconnected"
        );
    }

    /// Sends a message once and waits for the reply. `send_timeout` limits the time until the
    /// message is sent.
    async fn exchange_once(
        &self,
        nid: Nid,
        body: PtlrpcBody,
        bufs: Vec<Bytes>,
        reply_len: u32,
        send_timeout: Option<Duration>,
    ) -> Result<(Message, PtlrpcBody), RpcError> {
        let lnet = self.rpc.lnet();
        let portal = opcode::request_portal(body.pb_opc, self.cfg.kind);
        let xid = self.rpc.xids().next();
        // A server that granted REP_MBITS replies at `pb_mbits`, also to this request.
        let body = PtlrpcBody {
            pb_mbits: xid.0,
            ..body
        };
        // The message does not set the AT flag, so the server sends no early reply and puts the
        // reply at offset 0.
        let msg = Message {
            flags: 0,
            secflvr: self.cfg.kind.secflvr(),
            ..Message::new(&body, bufs)
        };
        let mut buffer =
            ReplyBuffer::attach(lnet, nid, opcode::reply_portal(portal), xid.0, reply_len, false);
        let put = async {
            match self.rpc.fail().loses(Stage::Send, &body).await {
                true => Ok(()),
                false => lnet
                    .put(nid, portal, xid.0, 0, 0, msg.build().into(), false)
                    .await
                    .map(drop),
            }
        };
        let sent = match send_timeout {
            None => put.await,
            Some(limit) => timeout(limit, put).await.map_err(|_| RpcError::Net {
                peer: nid.to_string(),
                why: format!("request not sent within {limit:?}"),
            })?,
        };
        sent.map_err(|e| RpcError::net(nid, &e))?;
        match buffer.next().await {
            Some(ReplyEvent::Final(reply)) => Ok(*reply),
            Some(ReplyEvent::Truncated { msg_len }) => Err(RpcError::Protocol {
                peer: nid.to_string(),
                expected: "a reply that fits into the request's reply buffer",
                found: format!("{msg_len} bytes for a buffer of {reply_len}"),
            }),
            other => Err(RpcError::Protocol {
                peer: nid.to_string(),
                expected: "a reply without early replies",
                found: format!("{other:?}"),
            }),
        }
    }
}
