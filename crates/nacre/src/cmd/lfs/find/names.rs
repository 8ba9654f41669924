//! Names of users and groups, from `/etc/passwd` and `/etc/group`.

use std::collections::HashMap;

/// Users and groups by id. Ids without a name are shown as numbers.
#[derive(Default)]
pub(super) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    /// The names of this machine; none if the files cannot be read.
    pub(super) fn read() -> Names {
        let read = |path| parse(&std::fs::read(path).unwrap_or_default());
        Names {
            users: read("/etc/passwd"),
            groups: read("/etc/group"),
        }
    }

    pub(super) fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    pub(super) fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }

    pub(super) fn uid(&self, name: &str) -> Option<u32> {
        id_of(&self.users, name)
    }

    pub(super) fn gid(&self, name: &str) -> Option<u32> {
        id_of(&self.groups, name)
    }
}

fn id_of(names: &HashMap<u32, String>, name: &str) -> Option<u32> {
    names.iter().find(|(_, n)| *n == name).map(|(id, _)| *id)
}

/// Parses lines of the form `name:password:id:...`. If several lines have the same id, the first
/// one counts. Bytes that are not UTF-8, as in a comment, affect only their own field.
fn parse(file: &[u8]) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in String::from_utf8_lossy(file).lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(id)) = (fields.next(), fields.nth(1).and_then(|id| id.parse().ok())) {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn first_name_of_an_id_counts() {
        let names = parse(b"root:x:0:0::/root:/bin/sh\ntoor:x:0:0:::\nada:x:1000:1000:::\n\nbad\n");
        assert_eq!(names[&0], "root");
        assert_eq!(names[&1000], "ada");
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn bytes_that_are_not_text_affect_only_their_field() {
        let names = parse(b"root:x:0:0::/root:/bin/sh\nada:x:1000:1000:Ad\xe4:/:\n\xfcwe:x:1001:::\n");
        assert_eq!(names[&0], "root");
        assert_eq!(names[&1000], "ada");
        assert_eq!(names[&1001], "\u{fffd}we");
    }
}
