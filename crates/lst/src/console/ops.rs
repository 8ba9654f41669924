//! The commands: what each asks of which nodes, and what is said of what came of it. Here those about the session, its groups,
//! and what nodes have counted; [`super::batches`] has the others.

use super::command::{Command, GroupCounts, NodeCounts, NodeState, Said, Update, Whom};
use super::text::{self, NODES_TITLE};
use super::transact::{Asked, LIMIT};
use super::{Inner, ids};
use std::time::Duration;
use tokio::time::Instant;
use wire::{
    Errno, LST_NAME_SIZE, Nid, SrpcBody, SrpcDebugReqst, SrpcMksnReqst, SrpcRmsnReqst, SrpcStatReply,
    SrpcStatReqst, Text,
};

/// Nodes of a session.
const NODES_MAX: usize = 1 << 14;

/// Every state.
pub(super) const ALL_STATES: [NodeState; 4] = [
    NodeState::Active,
    NodeState::Busy,
    NodeState::Down,
    NodeState::Unknown,
];

/// What a command says, or why it says nothing.
pub(super) type Result<T> = std::result::Result<T, String>;

impl Said {
    pub(super) fn out(out: impl Into<String>) -> Said {
        Said {
            out: out.into(),
            err: String::new(),
            ok: true,
        }
    }

    pub(super) fn failed(why: impl Into<String>) -> Said {
        Said {
            out: String::new(),
            err: why.into() + "\n",
            ok: false,
        }
    }
}

/// What an error means for the group, batch or test that it is about.
pub(super) fn why(what: &str, errno: Errno) -> String {
    match errno {
        Errno::ENOENT => format!("there is no {what} in this session"),
        Errno::EEXIST => format!("{what} is there already"),
        Errno::EBUSY => format!("{what} is used by a test"),
        e => format!("{what}: {e}"),
    }
}

/// A name that fits into the protocol's fields.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() >= LST_NAME_SIZE as usize || name.contains('\0') {
        return Err(format!(
            "'{name}': a name has from 1 to {} bytes",
            LST_NAME_SIZE - 1
        ));
    }
    Ok(())
}

/// What failed on which node, a line each; statuses of `fine` are no failures.
pub(super) fn failures(what: &str, asked: &[Asked], fine: &[u32]) -> String {
    let line = |a: &Asked| match a.status() {
        Err(e) => Some(format!("{what} RPC failed on {}: {e}\n", text::id(a.nid))),
        Ok(status) if status == 0 || fine.contains(&status) => None,
        Ok(status) => Some(format!(
            "operation {what} failed on {}: {}\n",
            text::id(a.nid),
            Errno(status as i32)
        )),
    };
    asked.iter().filter_map(line).collect()
}

impl Inner {
    pub(super) async fn execute(&self, command: Command) -> Said {
        let stop = match &command {
            Command::Stop { name, .. } => Some(name.clone()),
            _ => None,
        };
        let said = {
            let _turn = self.turn.lock().await;
            self.dispatch(command).await.unwrap_or_else(Said::failed)
        };
        match stop {
            // Others may use the console while this waits.
            Some(name) if said.ok => self.until_stopped(&name, said).await,
            _ => said,
        }
    }

    async fn dispatch(&self, command: Command) -> Result<Said> {
        match command {
            Command::EndSession => Ok(self.end_session().await),
            Command::ShowSession => Ok(Said::out(self.show_session())),
            Command::Ping { whom, timeout_s } => self.ping(&whom, timeout_s).await,
            Command::AddGroup { name, ids } => self.add_group(&name, &ids).await,
            Command::DelGroup { name } => self.del_group(&name).await,
            Command::UpdateGroup { name, how } => self.update_group(&name, how).await,
            Command::ListGroup { names, states } => self.list_group(&names, states.as_deref()),
            Command::ShowError { names, session_only } => self.show_error(&names, session_only).await,
            Command::AddBatch { name } => self.add_batch(&name),
            Command::Run { name, timeout_s } => self.run(&name, timeout_s).await,
            Command::Stop { name, force } => self.stop(&name, force).await,
            Command::ListBatch {
                name,
                test,
                server,
                nodes,
            } => match name {
                None => Ok(Said::out(self.list_batches())),
                Some(name) => self.list_batch(&name, test, server, nodes),
            },
            Command::Query {
                name,
                test,
                server,
                timeout_s,
                verbose,
            } => self.query(&name, test, server, timeout_s, verbose).await,
            Command::AddTest(wanted) => self.add_test(&wanted).await,
        }
    }
}

// ---- the session

impl Inner {
    fn show_session(&self) -> String {
        let state = self.state.lock();
        let (name, key) = (&self.wanted.name, self.wanted.key);
        let (stamp, nid) = (state.sid.ses_stamp, state.sid.ses_nid);
        let (feats, nodes) = (state.feats, state.nodes.len());
        format!("{name} ID: {stamp}@{nid}, KEY: {key} FEATURES: {feats:x} NODES: {nodes}\n")
    }

    async fn end_session(&self) -> Said {
        let asked = self.end().await;
        let err = failures("end session", &asked, &[Errno::ESRCH.0 as u32]);
        Said {
            out: "session is ended\n".to_owned(),
            ok: err.is_empty(),
            err,
        }
    }

    async fn ping(&self, whom: &Whom, timeout_s: u64) -> Result<Said> {
        let nids: Vec<Nid> = {
            let state = self.state.lock();
            match whom {
                Whom::Session => state.nodes.iter().map(|n| n.nid).collect(),
                Whom::Group(name) => {
                    let group = state.group(name).map_err(|e| why(&format!("group {name}"), e))?;
                    group.nids.clone()
                }
                Whom::Batch(name, servers) => {
                    let batch = state.batch(name).map_err(|e| why(&format!("batch {name}"), e))?;
                    if *servers {
                        batch.servers.clone()
                    } else {
                        batch.clients.clone()
                    }
                }
                Whom::Nodes(list) => ids::parse(list)?,
            }
        };
        if nids.is_empty() {
            return Ok(Said::out("there are no nodes\n"));
        }
        let debug = SrpcDebugReqst {
            dbg_sid: self.sid(),
            ..SrpcDebugReqst::default()
        };
        let asked = self
            .ask(
                nids.into_iter().map(|nid| (nid, debug.into())),
                Duration::from_secs(timeout_s),
            )
            .await;
        let line = |a: &Asked| {
            let session = match (&a.reply, a.state) {
                (Ok(reply), NodeState::Active | NodeState::Busy) => match &reply.body {
                    SrpcBody::DebugReply(debug) => debug.dbg_name.to_string(),
                    _ => "Unknown".to_owned(),
                },
                _ => "<NULL>".to_owned(),
            };
            let of = a.sid().map_or(Nid::ANY, |sid| sid.ses_nid);
            format!(
                "\t{}: {} [session: {session} id: {of}]\n",
                text::id(a.nid),
                a.state.name()
            )
        };
        let out = asked.iter().map(line).collect::<String>();
        self.state.lock().forget_unused();
        Ok(Said::out(out))
    }
}

// ---- groups

impl Inner {
    async fn add_group(&self, name: &str, lists: &[String]) -> Result<Said> {
        check_name(name)?;
        self.state
            .lock()
            .add_group(name)
            .map_err(|e| why(&format!("group {name}"), e))?;
        let wanted = self.state.lock().feats;
        let mut said = Said::out("");
        let mut added = false;
        for list in lists {
            let nids = match ids::parse(list) {
                Ok(nids) => nids,
                Err(e) => {
                    said.err += &format!("{e}: left out\n");
                    continue;
                }
            };
            let failed = self.invite(name, nids).await;
            if !failed.is_empty() {
                said.err += &failed;
                said.ok = false;
                break;
            }
            said.out += &format!("{list} are added to session\n");
            added = true;
            let missing = wanted & !self.state.lock().feats;
            if missing != 0 {
                said.out += &format!(
                    "Warning: some nodes do not know these features: {missing:x}; the session does without\n"
                );
            }
        }
        if !added {
            said.err += &format!("no node was added: group {name} is deleted\n");
            said.ok = false;
            said.out += &self.del_group(name).await?.out;
        }
        Ok(said)
    }

    /// Makes the session on those nodes that are not in it, and puts all into the group; what failed.
    async fn invite(&self, name: &str, nids: Vec<Nid>) -> String {
        let to_ask: Vec<Nid> = {
            let mut state = self.state.lock();
            let known = state.nodes.len() + nids.len();
            let Some(group) = state.groups.iter_mut().find(|g| g.name == name) else {
                return why(&format!("group {name}"), Errno::ENOENT) + "\n";
            };
            if known > NODES_MAX {
                return format!("a session has at most {NODES_MAX} nodes\n");
            }
            for &nid in &nids {
                if !group.nids.contains(&nid) {
                    group.nids.push(nid);
                }
            }
            nids.into_iter()
                .filter(|&nid| state.state_of(nid) != NodeState::Active)
                .collect()
        };
        let mksn = SrpcMksnReqst {
            mksn_sid: self.sid(),
            mksn_force: self.wanted.force.into(),
            mksn_name: Text::truncated(&self.wanted.name),
            ..SrpcMksnReqst::default()
        };
        let mut asked = self
            .ask(to_ask.into_iter().map(|nid| (nid, mksn.into())), LIMIT)
            .await;
        let mut differ = false;
        let mut state = self.state.lock();
        for a in &mut asked {
            let Ok(reply) = &mut a.reply else { continue };
            let SrpcBody::MksnReply(made) = &mut reply.body else {
                a.reply = Err(Errno::EBADMSG);
                continue;
            };
            if made.mksn_status == 0 && !state.agree(reply.feats) {
                made.mksn_status = Errno::EPROTO.0 as u32;
            }
            differ |= made.mksn_status == Errno::EPROTO.0 as u32;
            let timeout_s = made.mksn_timeout;
            state.node(Instant::now(), a.nid).timeout_s = timeout_s;
        }
        let mut failed = failures("create session", &asked, &[]);
        if differ {
            failed += "nodes know different features: set LST_FEATURES=0 for those that all know\n";
        }
        failed
    }

    /// Ends the session on nodes.
    async fn dismiss(&self, nids: Vec<Nid>) -> Vec<Asked> {
        let rmsn = SrpcRmsnReqst {
            rmsn_sid: self.sid(),
            ..SrpcRmsnReqst::default()
        };
        self.ask(nids.into_iter().map(|nid| (nid, rmsn.into())), LIMIT)
            .await
    }

    async fn del_group(&self, name: &str) -> Result<Said> {
        let only_here = {
            let mut state = self.state.lock();
            let group = state
                .free_group(name)
                .map_err(|e| why(&format!("group {name}"), e))?;
            let nids = group.nids.clone();
            state.only_in(name, &nids)
        };
        let asked = self.dismiss(only_here).await;
        let mut state = self.state.lock();
        state.groups.retain(|g| g.name != name);
        state.forget_unused();
        let err = failures("end session", &asked, &[Errno::ESRCH.0 as u32]);
        Ok(Said {
            out: "Group is deleted\n".to_owned(),
            ok: err.is_empty(),
            err,
        })
    }

    async fn update_group(&self, name: &str, how: Update) -> Result<Said> {
        let nids = {
            let mut state = self.state.lock();
            let group = state
                .free_group(name)
                .map_err(|e| why(&format!("group {name}"), e))?;
            group.nids.clone()
        };
        let err = match how {
            Update::Refresh => self.invite(name, nids).await,
            Update::Clean(states) => {
                let mut state = self.state.lock();
                let gone: Vec<Nid> = nids
                    .into_iter()
                    .filter(|&nid| states.contains(&state.state_of(nid)))
                    .collect();
                state.remove_from(name, |nid| gone.contains(&nid));
                String::new()
            }
            Update::Remove(list) => {
                let gone = ids::parse(&list)?;
                let only_here = self.state.lock().only_in(name, &gone);
                let asked = self.dismiss(only_here).await;
                self.state.lock().remove_from(name, |nid| gone.contains(&nid));
                failures("update group", &asked, &[Errno::ESRCH.0 as u32])
            }
        };
        Ok(Said {
            out: String::new(),
            ok: err.is_empty(),
            err,
        })
    }

    fn list_group(&self, names: &[String], states: Option<&[NodeState]>) -> Result<Said> {
        let state = self.state.lock();
        if names.is_empty() {
            let lines = state
                .groups
                .iter()
                .enumerate()
                .map(|(i, g)| format!("{}) {}\n", i + 1, g.name));
            return Ok(Said::out(
                lines.collect::<String>() + &format!("Total {} groups\n", state.groups.len()),
            ));
        }
        let mut out = if states.is_none() {
            NODES_TITLE.to_owned()
        } else {
            String::new()
        };
        for name in names {
            let group = state.group(name).map_err(|e| why(&format!("group {name}"), e))?;
            match states {
                None => out += &format!("{}\t{name}\n", state.tally(&group.nids).columns()),
                Some(states) => {
                    let (lines, count) = text::nodes(&state, &group.nids, states);
                    out += &format!("Group [ {name} ]\n{lines}Total {count} nodes [ {name} ]\n");
                }
            }
        }
        Ok(Said::out(out))
    }

    // ---- what nodes have counted

    fn named(&self, name: &str) -> Result<Vec<Nid>> {
        match self.state.lock().group(name) {
            Ok(group) => Ok(group.nids.clone()),
            Err(_) if name.contains('@') => ids::parse(name),
            Err(e) => Err(why(&format!("group {name}"), e)),
        }
    }

    /// What the nodes of a group, or of a list, say of themselves.
    async fn stat(&self, name: &str, limit: Duration) -> Result<Vec<(Nid, Option<SrpcStatReply>)>> {
        let stat = SrpcStatReqst {
            str_sid: self.sid(),
            ..SrpcStatReqst::default()
        };
        let asked = self
            .ask(self.named(name)?.into_iter().map(|nid| (nid, stat.into())), limit)
            .await;
        self.state.lock().forget_unused();
        let told = |a: Asked| match a.reply.map(|reply| reply.body) {
            Ok(SrpcBody::StatReply(stat)) if stat.str_status == 0 => (a.nid, Some(stat)),
            _ => (a.nid, None),
        };
        Ok(asked.into_iter().map(told).collect())
    }

    pub(super) async fn counts(&self, names: &[String], timeout: Duration) -> Result<Vec<GroupCounts>> {
        let _turn = self.turn.lock().await;
        let mut all = Vec::new();
        for name in names {
            let told = self.stat(name, timeout).await?;
            let of = |(nid, stat): &(Nid, Option<SrpcStatReply>)| {
                stat.as_ref()
                    .map(|s| NodeCounts::new(nid.to_string(), &s.str_fw, &s.str_lnet))
            };
            all.push(GroupCounts {
                name: name.clone(),
                nodes: told.iter().filter_map(of).collect(),
                failed: told.iter().filter(|(_, stat)| stat.is_none()).count(),
            });
        }
        Ok(all)
    }

    async fn show_error(&self, names: &[String], session_only: bool) -> Result<Said> {
        let mut said = Said::out("");
        for name in names {
            let mut wrong = 0;
            said.out += &format!("{name}:\n");
            for (nid, stat) in self.stat(name, Duration::from_secs(10)).await? {
                let Some(stat) = stat else {
                    wrong += 1;
                    said.err += &format!("{} does not say what errors it has seen\n", text::id(nid));
                    continue;
                };
                let (fw, rpc) = (stat.str_fw, stat.str_rpc);
                let of_session = fw.brw_errors != 0 || fw.ping_errors != 0;
                if !of_session && (session_only || rpc.errors == 0) {
                    continue;
                }
                wrong += 1;
                let (brw, ping) = (fw.brw_errors, fw.ping_errors);
                said.err += &format!(
                    "{}: [Session {brw} brw errors, {ping} ping errors]",
                    text::id(nid)
                );
                if !session_only {
                    let (errors, dropped, expired) = (rpc.errors, rpc.rpcs_dropped, rpc.rpcs_expired);
                    said.err += &format!(" [RPC: {errors} errors, {dropped} dropped, {expired} expired]");
                }
                said.err += "\n";
            }
            said.out += &format!("Total {wrong} error nodes in {name}\n");
        }
        Ok(said)
    }
}
