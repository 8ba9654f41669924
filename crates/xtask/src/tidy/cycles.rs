//! The modules of some folders import each other in one direction only: a reader can start at the
//! bottom, and a change of a module affects only the modules above it. A folder in such a folder is
//! one module.

use super::{assert_none, code, files};
use crate::stage::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The folders, each with the path of its module.
const FOLDERS: [(&str, &str); 1] = [("client/src/data", "crate::data::")];

/// The modules of a folder, and the modules that each imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The module of a file with this path in the folder, and the number of `super::` from the file to
/// the folder. `None` for the folder's `mod.rs`.
fn module_of(path: &Path) -> Option<(String, usize)> {
    let mut parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    if parts.last().is_some_and(|name| name == "mod.rs") {
        parts.pop();
    }
    let module = parts.first()?.trim_end_matches(".rs").to_owned();
    Some((module, parts.len()))
}

/// The first names after each `prefix` in a text of code.
fn names_after<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let name = |path: &'a str| {
        let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
        &path[..end.unwrap_or(path.len())]
    };
    let mut out = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        let rest = &text[at + prefix.len()..];
        if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let Some(list) = rest.strip_prefix('{') else {
            out.push(name(rest));
            continue;
        };
        // The items of the list, but not those of lists in it.
        let (mut depth, mut item) = (0, 0);
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' | ',' if depth == 0 => {
                    out.push(name(list[item..i].trim_start()));
                    item = i + 1;
                    if c == '}' {
                        break;
                    }
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    out.retain(|name| !name.is_empty() && *name != "super");
    out
}

/// The modules of a folder and their imports, from its files: paths in the folder and texts.
fn imports(files: &[(&Path, &str)], absolute: &str) -> Imports {
    let text_of = |text: &str| {
        let lines: Vec<&str> = code(text).into_iter().map(|(_, line)| line.trim()).collect();
        lines.join(" ")
    };
    let mut modules = Imports::new();
    // The modules of the names that the folder's `mod.rs` exports.
    let mut exports = BTreeMap::new();
    for (path, text) in files {
        match module_of(path) {
            Some((module, _)) => {
                modules.entry(module).or_default();
            }
            None => {
                for item in text_of(text)
                    .split(';')
                    .filter_map(|item| item.split_once("use "))
                {
                    if let Some((module, names)) = item.1.split_once("::") {
                        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
                        exports.extend(names.map(|name| (name.to_owned(), module.to_owned())));
                    }
                }
            }
        }
    }
    for (path, text) in files {
        let Some((module, depth)) = module_of(path) else {
            continue;
        };
        let text = text_of(text);
        let relative = "super::".repeat(depth);
        let mut used: Vec<&str> = names_after(&text, &relative);
        used.extend(names_after(&text, absolute));
        let used = used
            .into_iter()
            .map(|name| exports.get(name).map_or(name, |m: &String| &m[..]));
        let used: BTreeSet<String> = used
            .filter(|name| *name != module.as_str() && modules.contains_key(*name))
            .map(str::to_owned)
            .collect();
        modules.entry(module).or_default().extend(used);
    }
    modules
}

/// A module that imports itself through others, with these others. Removes the modules that import
/// no other module until none is left, or only modules of cycles and above.
fn cycle(mut imports: Imports) -> Vec<String> {
    loop {
        let count = imports.len();
        let left: BTreeSet<String> = imports.keys().cloned().collect();
        imports.retain(|_, used| {
            used.retain(|name| left.contains(name));
            !used.is_empty()
        });
        if imports.len() == count {
            break;
        }
    }
    let mut path: Vec<String> = imports.keys().take(1).cloned().collect();
    while let Some(next) = path.last().and_then(|last| imports.get(last)?.first()) {
        if let Some(at) = path.iter().position(|name| name == next) {
            path.drain(..at);
            path.push(path[0].clone());
            return path;
        }
        path.push(next.clone());
    }
    path
}

#[test]
fn modules_of_a_folder_import_each_other_in_one_direction() {
    let mut cycles = Vec::new();
    for (folder, absolute) in FOLDERS {
        let dir = root().join("crates").join(folder);
        let texts: Vec<_> = files(&dir, "rs")
            .into_iter()
            .map(|path| (path.clone(), fs::read_to_string(&path).unwrap()))
            .collect();
        let texts: Vec<(&Path, &str)> = texts
            .iter()
            .map(|(path, text)| (path.strip_prefix(&dir).unwrap(), &text[..]))
            .collect();
        let found = cycle(imports(&texts, absolute));
        if !found.is_empty() {
            cycles.push(format!("{folder}: {}", found.join(" -> ")));
        }
    }
    assert_none(
        "cycles of imports: move the shared item to a lower module",
        cycles,
    );
}

#[test]
fn cycles_are_found_in_nested_files_and_through_exports() {
    let found = |texts: &[(&str, &str)]| {
        let texts: Vec<_> = texts
            .iter()
            .map(|(path, text)| (Path::new(*path), *text))
            .collect();
        cycle(imports(&texts, "crate::data::")).join(" ")
    };
    let root = ("mod.rs", "mod a;\nmod b;\nmod c;\npub use c::{First, Second};\n");
    let lower = (
        "c.rs",
        "struct Second;\n#[cfg(test)]\nmod tests {\n    use super::super::a::X;\n}\n",
    );
    let a = ("a.rs", "use super::{\n    b::{X, Y},\n    c,\n};\n");
    assert_eq!(
        found(&[root, lower, a, ("b.rs", "use crate::data::Second;\n")]),
        ""
    );
    assert_eq!(found(&[root, lower, a, ("b.rs", "use super::a::Z;\n")]), "a b a");
    let nested = ("b/inner/mod.rs", "use super::super::a;\n");
    assert_eq!(found(&[root, lower, a, nested]), "a b a");
    let own = ("b/inner.rs", "use super::a;\n");
    assert_eq!(found(&[root, lower, a, own]), "", "a module of its own folder");
    let upwards = ("c.rs", "use super::First;\nuse crate::data::b;\n");
    assert_eq!(
        found(&[root, upwards, a, ("b.rs", "use crate::data::Second;\n")]),
        "b c b"
    );
}
