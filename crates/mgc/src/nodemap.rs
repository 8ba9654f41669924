//! Nodemaps: the rights of clients by ranges of NIDs.
//!
//! The MGS keeps the table in its log `nodemaps`, with a record `nodemap.NAME.PROPERTY=VALUE` for
//! each property of each map, and the targets follow that log. Names and meanings are Lustre's,
//! with three differences. The map `default`, for clients outside of all ranges, grants all rights
//! until the administrator changes it. No switch disables nodemaps. Lustre does not have the
//! property `capabilities`.
//!
//! The table ([`NodemapTable`]) is a plain value. With each request, a target looks up the rights
//! in [`Nodemaps`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use lnet::warn_rate_limited;
use params::{Param, ParamGuard, Registry};
use parking_lot::{Mutex, RwLock};
use rpc::{ConnectRequest, Role, TargetExports};
use tokio::sync::watch;
use wire::{Errno, Nid, NidList};

use crate::ConfParam;

/// The map of clients outside of all ranges, except for those at `0@lo`.
pub const DEFAULT: &str = "default";
/// Maximum length of a map's name in bytes, as in Lustre.
const NAME_MAX: usize = 16;
/// Maximum number of maps, including the default.
const MAPS_MAX: usize = 256;
/// Maximum length of the text of a map's ranges in bytes, which must fit into a record.
const RANGES_MAX: usize = wire::MGS_PARAM_MAXLEN as usize;
/// Prefix of the name of each record of a nodemap.
const PREFIX: &str = "nodemap.";
/// Default user id and group id of squashed users: nobody.
const NOBODY: u32 = 65534;

/// The rights of a map's clients. Each field is a property of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// The clients cannot connect.
    pub deny_mount: bool,
    /// The clients' mounts are read-only.
    pub readonly_mount: bool,
    /// OSTs require a capability, signed by the MDT, with each of the clients' requests.
    pub capabilities: bool,
    /// Root keeps its rights; if false, root is squashed.
    pub admin: bool,
    /// Users other than root keep their ids; if false, all of them are squashed.
    pub trusted: bool,
    /// The user id of squashed users.
    pub squash_uid: u32,
    /// The group id of squashed users.
    pub squash_gid: u32,
}

impl Rights {
    /// All rights. Servers have them, and clients in the server's own process that are outside of
    /// all ranges. The map `default` grants them until the administrator changes it.
    pub const ALL: Rights = Rights {
        deny_mount: false,
        readonly_mount: false,
        capabilities: false,
        admin: true,
        trusted: true,
        squash_uid: NOBODY,
        squash_gid: NOBODY,
    };

    /// The rights of a new map.
    const NEW: Rights = Rights {
        admin: false,
        trusted: false,
        ..Rights::ALL
    };

    /// The user id and group id that a user is squashed to; `None` for a user that is not squashed.
    pub fn squash(&self, uid: u32) -> Option<(u32, u32)> {
        let is_trusted = if uid == 0 { self.admin } else { self.trusted };
        (!is_trusted).then_some((self.squash_uid, self.squash_gid))
    }

    /// All properties except the ranges, by name.
    fn properties(&self) -> [(&'static str, u32); 7] {
        [
            ("admin", self.admin.into()),
            ("capabilities", self.capabilities.into()),
            ("deny_mount", self.deny_mount.into()),
            ("readonly_mount", self.readonly_mount.into()),
            ("squash_gid", self.squash_gid),
            ("squash_uid", self.squash_uid),
            ("trusted", self.trusted.into()),
        ]
    }

    fn set(&mut self, property: &str, value: &str) -> Result<(), String> {
        let flag = || match value {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(format!("'{value}' is not a valid '{property}': expected 0 or 1")),
        };
        let id = || {
            let id = value.parse().ok().filter(|id| *id != u32::MAX);
            id.ok_or_else(|| {
                format!("'{value}' is not a valid '{property}': expected a number below 4294967295")
            })
        };
        match property {
            "admin" => self.admin = flag()?,
            "capabilities" => self.capabilities = flag()?,
            "deny_mount" => self.deny_mount = flag()?,
            "readonly_mount" => self.readonly_mount = flag()?,
            "squash_gid" => self.squash_gid = id()?,
            "squash_uid" => self.squash_uid = id()?,
            "trusted" => self.trusted = flag()?,
            _ => {
                let known = Rights::ALL.properties().map(|(name, _)| name).join(", ");
                return Err(format!("unknown property '{property}': expected one of {known}"));
            }
        }
        Ok(())
    }
}

/// A nodemap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodemap {
    /// The NIDs of its clients.
    pub ranges: NidList,
    /// The rights of its clients.
    pub rights: Rights,
}

/// All maps by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodemapTable(BTreeMap<String, Nodemap>);

impl Default for NodemapTable {
    fn default() -> NodemapTable {
        let default = Nodemap {
            ranges: NidList::default(),
            rights: Rights::ALL,
        };
        NodemapTable(BTreeMap::from([(DEFAULT.to_owned(), default)]))
    }
}

impl NodemapTable {
    /// Builds the table from the records of the log.
    ///
    /// # Errors
    ///
    /// A message that names the invalid record.
    pub fn from_params(params: &[ConfParam]) -> Result<NodemapTable, String> {
        let mut table = NodemapTable::default();
        for param in params {
            let Some(name) = param.name.strip_prefix(PREFIX) else {
                continue;
            };
            let bad = |why: String| format!("'{}={}': {why}", param.name, param.value);
            let (name, property) = name
                .split_once('.')
                .ok_or_else(|| bad("it names no property".into()))?;
            check_name(name).map_err(bad)?;
            let map = table.0.entry(name.to_owned()).or_insert_with(Nodemap::new);
            if property == "ranges" {
                map.ranges = parse_ranges(&param.value).map_err(bad)?;
            } else {
                map.rights.set(property, &param.value).map_err(bad)?;
            }
        }
        Ok(table)
    }

    /// The values of the log's records by name. The default map has no records while it grants all
    /// rights.
    pub fn records(&self) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        for (name, map) in &self.0 {
            if name == DEFAULT && map.rights == Rights::ALL {
                continue;
            }
            out.extend(
                map.properties()
                    .map(|(property, value)| (format!("{PREFIX}{name}.{property}"), value)),
            );
        }
        out
    }

    /// All maps, by name.
    pub fn maps(&self) -> impl Iterator<Item = (&str, &Nodemap)> {
        self.0.iter().map(|(name, map)| (name.as_str(), map))
    }

    /// The rights of a client by its NID. A client within the server's own process (`0@lo`) has all
    /// rights, unless it is in a map's range.
    pub fn rights(&self, nid: Nid) -> Rights {
        let map = self.0.values().find(|map| map.ranges.has(nid));
        match map {
            Some(map) => map.rights,
            None if nid == Nid::LO => Rights::ALL,
            None => self.0.get(DEFAULT).map_or(Rights::ALL, |map| map.rights),
        }
    }

    /// Adds a map without ranges, in which all users are squashed.
    ///
    /// # Errors
    ///
    /// A message if the name is invalid or in use, or if there are too many maps.
    pub fn add(&mut self, name: &str) -> Result<(), String> {
        check_name(name)?;
        if self.0.contains_key(name) {
            return Err(format!("nodemap '{name}' exists already"));
        }
        if self.0.len() >= MAPS_MAX {
            return Err(format!("there are already {MAPS_MAX} nodemaps, the maximum"));
        }
        self.0.insert(name.to_owned(), Nodemap::new());
        Ok(())
    }

    /// Removes a map. Its clients are then outside of all ranges.
    ///
    /// # Errors
    ///
    /// A message if the map is the default one or does not exist.
    pub fn remove(&mut self, name: &str) -> Result<(), String> {
        self.check_exists_and_not_default(name)?;
        self.0.remove(name);
        Ok(())
    }

    /// Adds ranges to a map. Ranges of different maps must not overlap.
    ///
    /// # Errors
    ///
    /// A message if the map does not exist or is the default one, if a range is invalid or overlaps
    /// with another one, or if the text of the map's ranges becomes too long.
    pub fn add_range(&mut self, name: &str, range: &str) -> Result<(), String> {
        self.check_exists_and_not_default(name)?;
        let added = parse_ranges(range)?;
        if added.is_empty() {
            return Err("expected a range, such as 10.0.0.[1-9]@tcp".to_owned());
        }
        let other = self.0.iter().find(|(_, map)| map.ranges.overlaps(&added));
        if let Some((other, map)) = other {
            return Err(format!(
                "'{range}' overlaps with '{}' of nodemap '{other}'",
                map.ranges
            ));
        }
        let map = self.map(name)?;
        let all = parse_ranges(&format!("{} {range}", map.ranges))?;
        if all.to_string().len() > RANGES_MAX {
            return Err(format!(
                "the ranges of nodemap '{name}' are longer than {RANGES_MAX} characters: shorten them with brackets"
            ));
        }
        map.ranges = all;
        Ok(())
    }

    /// Removes one range from a map. `range` must have the spelling with which it was added.
    ///
    /// # Errors
    ///
    /// A message if the map does not exist, is the default one, or does not have the range.
    pub fn remove_range(&mut self, name: &str, range: &str) -> Result<(), String> {
        self.check_exists_and_not_default(name)?;
        let map = self.map(name)?;
        let all = map.ranges.to_string();
        let left: Vec<&str> = all.split_whitespace().filter(|r| *r != range.trim()).collect();
        if left.len() == all.split_whitespace().count() {
            return Err(format!("nodemap '{name}' has no range '{range}': it has '{all}'"));
        }
        map.ranges = parse_ranges(&left.join(" "))?;
        Ok(())
    }

    /// Sets a property of a map, except for its ranges.
    ///
    /// # Errors
    ///
    /// A message if the map or the property does not exist, or if the value is invalid.
    pub fn modify(&mut self, name: &str, property: &str, value: &str) -> Result<(), String> {
        self.map(name)?.rights.set(property, value)
    }

    fn map(&mut self, name: &str) -> Result<&mut Nodemap, String> {
        self.0
            .get_mut(name)
            .ok_or_else(|| format!("there is no nodemap '{name}'"))
    }

    fn check_exists_and_not_default(&mut self, name: &str) -> Result<(), String> {
        if name == DEFAULT {
            return Err("the default nodemap has no ranges and cannot be removed".to_owned());
        }
        self.map(name).map(drop)
    }
}

impl Nodemap {
    fn new() -> Nodemap {
        Nodemap {
            ranges: NidList::default(),
            rights: Rights::NEW,
        }
    }

    /// All properties with their values, the ranges last.
    pub fn properties(&self) -> impl Iterator<Item = (&'static str, String)> {
        let rights = self.rights.properties().map(|(name, n)| (name, n.to_string()));
        rights.into_iter().chain([("ranges", self.ranges.to_string())])
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_allowed) {
        return Err(format!(
            "a nodemap's name has 1 to {NAME_MAX} letters, digits, '_' or '-'"
        ));
    }
    Ok(())
}

fn parse_ranges(text: &str) -> Result<NidList, String> {
    text.parse().map_err(|e: wire::WireError| e.to_string())
}

/// The nodemaps of the MGS or of a target, which change at run time.
pub struct Nodemaps {
    table: RwLock<Arc<NodemapTable>>,
    /// Number of replacements of the table.
    generation: AtomicU64,
    /// Wakes tasks that wait for the next replacement of the table; the value is not used.
    changes: watch::Sender<u64>,
    /// The registered parameters; `None` before [`Nodemaps::register_params`].
    params: Mutex<Option<(Registry, Vec<ParamGuard>)>>,
}

impl fmt::Debug for Nodemaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nodemaps").field(&self.table()).finish()
    }
}

impl Default for Nodemaps {
    fn default() -> Nodemaps {
        Nodemaps {
            table: RwLock::default(),
            generation: AtomicU64::new(0),
            changes: watch::Sender::new(0),
            params: Mutex::default(),
        }
    }
}

/// After each change of the nodemaps, evicts the clients that may no longer connect. Ends at the
/// first change after the target has dropped its exports.
pub async fn evict_denied(nodemaps: Arc<Nodemaps>, exports: Weak<TargetExports>) {
    let mut changes = nodemaps.changes();
    while changes.changed().await.is_ok() {
        let Some(exports) = exports.upgrade() else { return };
        exports.evict_unadmitted();
    }
}

/// The name of the parameter of a property. As in Lustre, two parameters have other names.
fn param_name(property: &str) -> String {
    match property {
        "admin" | "trusted" => format!("{property}_nodemap"),
        _ => property.to_owned(),
    }
}

/// The description of the parameter of a property.
fn description(property: &str) -> &'static str {
    match property {
        "admin" => "1: root of these clients keeps its rights; 0: it is squashed",
        "capabilities" => "1: OSTs serve these clients only with capabilities signed by the MDT",
        "deny_mount" => "1: these clients cannot connect",
        "readonly_mount" => "1: these clients mount read-only",
        "squash_gid" => "group id of squashed users",
        "squash_uid" => "user id of squashed users",
        "trusted" => "1: users of these clients keep their ids; 0: they are squashed",
        _ => "NIDs of the nodemap's clients (set by `nacre lctl nodemap_add_range`)",
    }
}

/// The rights of one client, cached in its export: the generation of the table, the client's NID,
/// and the rights that the table gives to this NID.
#[derive(Debug, Default)]
pub struct CachedRights(Mutex<Option<(u64, Nid, Rights)>>);

impl Nodemaps {
    /// Replaces the table.
    pub fn set(&self, table: NodemapTable) {
        *self.table.write() = Arc::new(table);
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.changes.send_modify(|n| *n += 1);
        self.update_params();
    }

    /// Registers the properties of all maps as parameters `nodemap.NAME.*`, now and after each
    /// change.
    pub fn register_params(&self, registry: &Registry) {
        *self.params.lock() = Some((registry.clone(), Vec::new()));
        self.update_params();
    }

    fn update_params(&self) {
        let mut registered = self.params.lock();
        let Some((registry, params)) = registered.as_mut() else {
            return;
        };
        params.clear();
        for (name, map) in self.table().maps() {
            params.extend(map.properties().map(|(property, value)| {
                let param = Param::read_only(move || value.clone())
                    .about(description(property))
                    .instead("use `nacre lctl nodemap_modify` or `nodemap_add_range`");
                registry.register(format!("{PREFIX}{name}.{}", param_name(property)), param)
            }));
        }
    }

    /// Decides whether a peer with this role may connect to `target`. Returns the role.
    ///
    /// # Errors
    ///
    /// `EACCES` if the peer is a client in a map with `deny_mount`.
    pub fn admit(&self, target: &str, req: &ConnectRequest, role: Role) -> Result<Role, Errno> {
        if role == Role::Client && self.table().rights(req.peer).deny_mount {
            warn_rate_limited!(
                target_uuid = target, peer = %req.peer, client = %req.client_uuid,
                "connect refused: the nodemap of the client's NID has deny_mount=1"
            );
            return Err(Errno::EACCES);
        }
        Ok(role)
    }

    /// The current table.
    pub fn table(&self) -> Arc<NodemapTable> {
        self.table.read().clone()
    }

    /// A receiver that is notified of each replacement of the table.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The rights of the client at this NID. Looks them up in the table, and caches them, only if
    /// `cached` is of another table or another NID.
    pub fn rights(&self, cached: &CachedRights, nid: Nid) -> Rights {
        let generation = self.generation.load(Ordering::SeqCst);
        let mut cached = cached.0.lock();
        match *cached {
            Some((of_generation, of_nid, rights)) if (of_generation, of_nid) == (generation, nid) => rights,
            _ => {
                let rights = self.table().rights(nid);
                *cached = Some((generation, nid, rights));
                rights
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    fn records_as_params(table: &NodemapTable) -> Vec<ConfParam> {
        let param = |(name, value)| ConfParam {
            target: "general".to_owned(),
            name,
            value,
        };
        table.records().into_iter().map(param).collect()
    }

    #[test]
    fn all_clients_have_all_rights_by_default() {
        let table = NodemapTable::default();
        for client in ["10.0.0.1@tcp", "127.0.0.1@tcp", "0@lo"] {
            assert_eq!(table.rights(nid(client)), Rights::ALL);
        }
        assert!(table.records().is_empty());
        assert_eq!(NodemapTable::from_params(&[]), Ok(table));
    }

    #[test]
    fn a_client_has_the_rights_of_the_map_whose_range_has_its_nid() {
        let mut table = NodemapTable::default();
        table.add("lab").unwrap();
        table.add_range("lab", "10.0.0.[1-9]@tcp 10.0.1.*@tcp").unwrap();
        table.modify("lab", "trusted", "1").unwrap();
        table.modify("lab", "squash_uid", "99").unwrap();
        table.modify("lab", "readonly_mount", "1").unwrap();
        table.modify(DEFAULT, "deny_mount", "1").unwrap();
        let lab = table.rights(nid("10.0.1.77@tcp"));
        assert!(lab.readonly_mount && !lab.deny_mount);
        assert_eq!((lab.squash(0), lab.squash(1000)), (Some((99, 65534)), None));
        let others = table.rights(nid("10.0.0.10@tcp"));
        assert!(others.deny_mount && others.squash(0).is_none());
        // The server's own process keeps its rights unless it is in a range.
        assert_eq!(table.rights(Nid::LO), Rights::ALL);
        table.add_range("lab", "0@lo").unwrap();
        assert!(table.rights(Nid::LO).readonly_mount);
        assert_eq!(
            NodemapTable::from_params(&records_as_params(&table)),
            Ok(table.clone())
        );
        table.remove_range("lab", "10.0.1.*@tcp").unwrap();
        assert!(table.rights(nid("10.0.1.77@tcp")).deny_mount);
        table.remove("lab").unwrap();
        assert!(table.rights(nid("10.0.0.1@tcp")).deny_mount);
    }

    #[test]
    fn a_new_map_squashes_all_users_as_in_lustre() {
        let mut table = NodemapTable::default();
        table.add("new").unwrap();
        table.add_range("new", "10.0.0.1@tcp").unwrap();
        let rights = table.rights(nid("10.0.0.1@tcp"));
        assert_eq!(rights.squash(0), Some((65534, 65534)));
        assert_eq!(rights.squash(1000), Some((65534, 65534)));
    }

    #[test]
    fn invalid_changes_are_refused() {
        let mut table = NodemapTable::default();
        table.add("a").unwrap();
        table.add("b").unwrap();
        table.add_range("a", "10.0.0.[1-9]@tcp").unwrap();
        let before = table.clone();
        for name in ["", "a.b", "a=b", "seventeen-letters", "a b", "a", DEFAULT] {
            assert!(table.add(name).is_err(), "{name}");
        }
        for (name, range) in [
            ("b", "10.0.*.9@tcp"),
            ("a", "10.0.0.5@tcp"),
            ("b", ""),
            ("b", "10.0.0.1"),
            ("c", "10.0.0.1@tcp"),
            (DEFAULT, "10.1.0.1@tcp"),
        ] {
            assert!(table.add_range(name, range).is_err(), "{name} {range}");
        }
        for (name, property, value) in [
            ("c", "admin", "1"),
            ("a", "admin", "2"),
            ("a", "admin", ""),
            ("a", "squash_uid", "-1"),
            ("a", "squash_uid", "4294967295"),
            ("a", "ranges", "10.0.0.1@tcp"),
            ("a", "unheard_of", "1"),
        ] {
            assert!(table.modify(name, property, value).is_err(), "{name} {property}");
        }
        assert!(table.remove(DEFAULT).is_err() && table.remove("c").is_err());
        assert!(table.remove_range("a", "10.0.0.1@tcp").is_err());
        assert_eq!(table, before);
        for (name, value) in [
            ("nodemap.a", "1"),
            ("nodemap.a.unheard_of", "1"),
            ("nodemap.a.ranges", "x"),
            ("nodemap..admin", "1"),
        ] {
            let param = ConfParam {
                target: "general".to_owned(),
                name: name.to_owned(),
                value: value.to_owned(),
            };
            assert!(NodemapTable::from_params(&[param]).is_err(), "{name}");
        }
    }

    #[test]
    fn cached_rights_change_with_the_table_and_the_nid() {
        let (nodemaps, cached) = (Nodemaps::default(), CachedRights::default());
        assert_eq!(nodemaps.rights(&cached, nid("10.0.0.1@tcp")), Rights::ALL);
        let mut table = NodemapTable::default();
        table.add("a").unwrap();
        table.add_range("a", "10.0.0.1@tcp").unwrap();
        nodemaps.set(table);
        assert_eq!(nodemaps.rights(&cached, nid("10.0.0.1@tcp")), Rights::NEW);
        assert_eq!(nodemaps.rights(&cached, nid("10.0.0.2@tcp")), Rights::ALL);
    }
}
