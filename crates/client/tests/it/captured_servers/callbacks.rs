//! Blocking, completion and glimpse callbacks: the captured callbacks, and blocking callbacks for
//! locks that our client has and the captured client did not have.

use crate::captured_servers::ids::Side;
use crate::captured_servers::key;
use crate::captured_servers::library::{Callback, Exchange};
use crate::captured_servers::server::{ClientRequest, Lock, SimulatedServers, creates_name};
use lnet::{MatchEntry, Md, MdEvent};
use std::time::Duration;
use wire::format::Rqf;
use wire::{
    Fid, LDLM_BL_CALLBACK, LDLM_CB_REPLY_PORTAL, LDLM_CB_REQUEST_PORTAL, LDLM_IBITS, LdlmReply, LdlmRequest,
    LustreHandle, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_UPDATE, MdtRecReint, Message, Nid, PtlrpcBody,
    WireStruct,
};

/// The longest wait for the cancellation of a revoked lock or the reply to a callback, by the
/// test's clock.
const CANCEL_WAIT_MAX: Duration = Duration::from_secs(4);

impl SimulatedServers {
    /// Sends the callbacks that were captured during this request, for locks that our client holds
    /// too.
    pub async fn send_callbacks_during(&self, exchange: &Exchange) {
        let during = |c: &&Callback| {
            c.capture == exchange.capture
                && c.request.body.pb_opc == LDLM_BL_CALLBACK
                && (exchange.request.time_us..exchange.reply_us).contains(&c.request.time_us)
        };
        for callback in self.library.callbacks.iter().filter(during) {
            if self.send_captured_callback(callback).await.is_some() {
                self.wait_for_cancel(callback).await;
            }
        }
    }

    /// Revokes our client's conflicting locks that the request did not cancel, as every server
    /// does. The captured client may have had no such locks, or cancelled them with the request.
    pub async fn revoke_conflicting_locks(&self, req: &ClientRequest) {
        let changed = changed_files(req);
        let locks: Vec<Lock> = {
            let state = self.state.lock();
            let conflicts = |l: &&Lock| {
                let fid = Fid::from_res_id(&l.desc.l_resource.lr_name);
                l.desc.l_resource.lr_type == LDLM_IBITS
                    && changed.contains(&fid)
                    && l.desc.l_policy_data.0[0] & REVOKED_BITS != 0
            };
            state.locks.iter().filter(conflicts).copied().collect()
        };
        for lock in locks {
            self.revoke(lock, REVOKED_BITS).await;
        }
    }

    /// Revokes these bits of our client's lock, and waits until the client has cancelled it.
    pub async fn revoke(&self, lock: Lock, bits: u64) {
        let mut desc = lock.desc;
        desc.l_req_mode = wire::LCK_EX;
        desc.l_granted_mode = 0;
        desc.l_policy_data.0 = [bits, bits, 0, 0];
        let request = LdlmRequest {
            lock_desc: desc,
            lock_handle: [lock.cookie, lock.handle],
            ..LdlmRequest::default()
        };
        let cookie = self
            .state
            .lock()
            .clients
            .get(&lock.connection)
            .copied()
            .unwrap_or(0);
        let body = PtlrpcBody {
            pb_type: wire::PTL_RPC_MSG_REQUEST,
            pb_version: wire::LUSTRE_DLM_VERSION | wire::PTLRPC_MSG_VERSION,
            pb_opc: LDLM_BL_CALLBACK,
            pb_handle: LustreHandle { cookie },
            pb_conn_cnt: 1,
            ..PtlrpcBody::default()
        };
        let msg = Message::new(&body, [request.to_bytes()]);
        let reply = self.send_callback("a blocking callback", msg).await;
        let known = reply
            .and_then(|r| r.body().ok())
            .is_some_and(|b| b.pb_status == 0);
        if known {
            self.wait_until_cancelled(lock.handle).await;
        } else {
            self.state.lock().locks.retain(|l| l.handle != lock.handle);
        }
    }

    /// Sends the completion callback of a blocked lock.
    pub async fn send_completion(&self, exchange: &Exchange) {
        let handle = exchange
            .reply
            .get::<LdlmReply>(1)
            .unwrap_or_default()
            .lock_handle
            .cookie;
        let completes = |c: &&Callback| {
            let request = key::lock_request(&c.request.msg);
            c.request.body.pb_opc == wire::LDLM_CP_CALLBACK
                && request.is_some_and(|r| r.lock_handle[1] == handle)
        };
        match self.library.callbacks.iter().find(completes) {
            Some(callback) => drop(self.send_captured_callback(callback).await),
            None => self
                .state
                .lock()
                .fail(format!("no completion of lock {handle:#x} was captured")),
        }
    }

    /// Waits until our client has cancelled the lock of a captured callback.
    pub async fn wait_for_cancel(&self, callback: &Callback) {
        let theirs = key::lock_request(&callback.request.msg).map_or(0, |r| r.lock_handle[1]);
        let ours = self.state.lock().ids.handle(Side::Ours, theirs);
        self.wait_until_cancelled(ours.unwrap_or(theirs)).await;
    }

    async fn wait_until_cancelled(&self, handle: u64) {
        let until_cancelled = async {
            loop {
                let notified = self.cancelled.notified();
                if self.state.lock().cancelled_locks.contains(&handle) {
                    return;
                }
                notified.await;
            }
        };
        if tokio::time::timeout(CANCEL_WAIT_MAX, until_cancelled)
            .await
            .is_err()
        {
            let mut state = self.state.lock();
            state.fail(format!(
                "lock {handle:#x} was revoked, but not cancelled within {CANCEL_WAIT_MAX:?}"
            ));
        }
    }

    /// Sends a callback to our client and returns the client's reply. `name`: the callback's name
    /// in a failure message.
    async fn send_callback(&self, name: &str, mut msg: Message) -> Option<Message> {
        let xid = {
            let mut state = self.state.lock();
            state.xid += 128;
            0x7000_0000_0000_0000 + state.xid
        };
        let body = PtlrpcBody {
            pb_mbits: xid,
            pb_timeout: 100,
            ..msg.body().ok()?
        };
        msg.set_body(&body);
        let me = MatchEntry {
            portal: LDLM_CB_REPLY_PORTAL,
            match_bits: xid,
            from: None,
        };
        let mut buffer = self.lnet.attach(me, Md::Sink { max_len: 4096 });
        let payload = msg.build().into();
        let put = self
            .lnet
            .put(Nid::LO, LDLM_CB_REQUEST_PORTAL, xid, 0, 0, payload, false);
        put.await.ok()?;
        let Ok(Some(MdEvent::Put { payload, .. })) =
            tokio::time::timeout(CANCEL_WAIT_MAX, buffer.next()).await
        else {
            self.state.lock().fail(format!("{name} was not answered"));
            return None;
        };
        Message::parse(&payload.into_bytes()).ok()
    }

    /// Sends a captured callback for a lock that our client holds, and compares the client's reply.
    /// `None`: our client has no such lock, or the blocking callback was already sent.
    pub async fn send_captured_callback(&self, callback: &Callback) -> Option<Message> {
        let format: &'static Rqf = callback.request.format?;
        let msg = {
            let mut state = self.state.lock();
            state.ids.handle(Side::Ours, callback.cookie())?;
            let is_first = state.callbacks_sent.insert(callback.request.xid);
            if !is_first && callback.request.body.pb_opc == LDLM_BL_CALLBACK {
                return None;
            }
            let mut msg = state
                .ids
                .message(Side::Ours, format, false, &callback.request.msg);
            let theirs = callback.request.body.pb_handle.cookie;
            let cookie = state.ids.handle(Side::Ours, theirs).unwrap_or(theirs);
            msg.set_body(&PtlrpcBody {
                pb_handle: LustreHandle { cookie },
                ..callback.request.body
            });
            msg
        };
        let reply = self.send_callback(format.name, msg).await?;
        let mut state = self.state.lock();
        if state.comparing {
            let ours = state.ids.message(Side::Theirs, format, true, &reply);
            let scenario = state.capture.clone();
            state
                .counts
                .compare(&scenario, format, true, &ours, &callback.reply);
        }
        Some(reply)
    }
}

/// The lock bits that a change of a file's entry or attributes revokes from all clients.
const REVOKED_BITS: u64 = MDS_INODELOCK_LOOKUP | MDS_INODELOCK_UPDATE;

/// The files with attributes or entries that a request changes.
fn changed_files(req: &ClientRequest) -> Vec<Fid> {
    let rec = match req.format.request_index(wire::format::Rmf::RecReint) {
        Some(at) => req.msg.get::<MdtRecReint>(at).unwrap_or_default(),
        None => return Vec::new(),
    };
    match rec.rr_opcode {
        wire::REINT_SETATTR | wire::REINT_SETXATTR if req.body.pb_opc == wire::MDS_REINT => {
            vec![rec.rr_fid1]
        }
        wire::REINT_LINK | wire::REINT_UNLINK | wire::REINT_RENAME => vec![rec.rr_fid1, rec.rr_fid2],
        wire::REINT_CREATE => vec![rec.rr_fid1],
        wire::REINT_OPEN if creates_name(req) => vec![rec.rr_fid1],
        _ => Vec::new(),
    }
}
