//! Circles: files of a crate that import from each other, directly or around.
//!
//! Invariants: an import is an arrow to the file that defines the name, also where another re-exports it. A module that
//! only declares a child has no arrow to it. Tests have none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;
use syn::visit::{self, Visit};

use super::super::walk::File;
use super::shape::{is_for_tests, item_attrs, parse};
use super::{SHIPPED, shipped};

/// How often a name may be re-exported.
const REEXPORTS_MAX: usize = 8;

/// Files that import from each other.
pub(super) struct Circle {
    pub(super) files: Vec<String>,
    /// From, to, and the names that are imported.
    pub(super) ties: Vec<(String, String, Vec<String>)>,
}

type Module = Vec<String>;

/// A file of a crate.
#[derive(Default)]
struct Room {
    path: String,
    defines: BTreeSet<String>,
    /// Names that `use` brings in, with the path that they stand for; `*` is a glob.
    uses: Vec<(String, Vec<String>)>,
    /// Paths elsewhere in the code.
    paths: Vec<Vec<String>>,
    /// Inline modules around what is visited.
    inline: usize,
}

/// Folders of a crate's `src`, lower ones first: a lower one imports nothing of a higher one.
pub(super) const LAYERS: [(&str, &[&str]); 1] = [("journal", &["format", "io", "write", "run", "recover"])];

/// An import against the direction of the layers: from, to, and the names.
pub(super) type Upward = (String, String, Vec<String>);

/// An import: from a file, to a file.
type Arrows<'a> = BTreeMap<(&'a str, &'a str), BTreeSet<String>>;

pub(super) fn circles(files: &[File]) -> Result<Vec<Circle>> {
    Ok(crates(files)?.iter().flat_map(circles_of).collect())
}

/// All imports between files of a crate.
pub(super) fn imports(files: &[File]) -> Result<Vec<(String, String)>> {
    let crates = crates(files)?;
    let arrows = crates.iter().flat_map(arrows_of);
    Ok(arrows.map(|((from, to), _)| (from.to_owned(), to.to_owned())).collect())
}

/// The files of each crate that is shipped.
fn crates(files: &[File]) -> Result<Vec<HashMap<Module, Room>>> {
    SHIPPED.iter().map(|name| rooms_of(files, name)).collect()
}

/// Imports from a lower layer into a higher one.
pub(super) fn upward(files: &[File]) -> Result<Vec<Upward>> {
    let mut all = Vec::new();
    for (name, layers) in LAYERS {
        let rooms = rooms_of(files, name)?;
        let layer = |path: &str| {
            let below = path.strip_prefix(&format!("{name}/src/"))?;
            layers.iter().position(|layer| below.split('/').next() == Some(layer))
        };
        for ((from, to), names) in arrows_of(&rooms) {
            if let (Some(lower), Some(higher)) = (layer(from), layer(to))
                && lower < higher
            {
                all.push((from.to_owned(), to.to_owned(), names.into_iter().collect()));
            }
        }
    }
    Ok(all)
}

fn rooms_of(files: &[File], name: &str) -> Result<HashMap<Module, Room>> {
    let mut rooms = HashMap::<Module, Room>::new();
    for file in files {
        let Some((_, below)) = shipped(file).filter(|(its, _)| *its == name) else { continue };
        let Some(module) = module_of(&below.to_string_lossy()) else { continue };
        let mut room = Room { path: file.path.display().to_string(), ..Room::default() };
        room.visit_file(&parse(file)?);
        rooms.insert(module, room);
    }
    Ok(rooms)
}

/// The module that a file is, by its path below `src`.
fn module_of(path: &str) -> Option<Module> {
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    match path {
        "lib" => Some(Vec::new()),
        "main" => None,
        _ => Some(path.split('/').map(str::to_owned).collect()),
    }
}

fn arrows_of(rooms: &HashMap<Module, Room>) -> Arrows<'_> {
    let mut arrows = Arrows::new();
    for (module, room) in rooms {
        for path in room.uses.iter().map(|(_, path)| path).chain(&room.paths) {
            let to = absolute(rooms, module, path).and_then(|(at, rest)| resolve(rooms, at, &rest, REEXPORTS_MAX));
            let Some(to) = to.and_then(|to| rooms.get(&to)).filter(|to| to.path != room.path) else { continue };
            arrows.entry((&room.path, &to.path)).or_default().extend(path.last().cloned());
        }
    }
    arrows
}

fn circles_of(rooms: &HashMap<Module, Room>) -> Vec<Circle> {
    let arrows = arrows_of(rooms);
    let mut graph = DiGraph::<&str, ()>::new();
    let mut nodes = BTreeMap::new();
    for (from, to) in arrows.keys() {
        let [a, b] = [from, to].map(|path| *nodes.entry(*path).or_insert_with(|| graph.add_node(path)));
        graph.add_edge(a, b, ());
    }
    let mut circles = Vec::new();
    for circle in tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 1) {
        let files: BTreeSet<&str> = circle.iter().map(|node| graph[*node]).collect();
        let inside = arrows.iter().filter(|((from, to), _)| files.contains(from) && files.contains(to));
        circles.push(Circle {
            ties: inside
                .map(|((from, to), names)| (from.to_string(), to.to_string(), names.iter().cloned().collect()))
                .collect(),
            files: files.into_iter().map(str::to_owned).collect(),
        });
    }
    circles.sort_by(|a, b| a.files.cmp(&b.files));
    circles
}

/// Where a path begins, and what is left of it; nothing where it leads out of the crate.
fn absolute(rooms: &HashMap<Module, Room>, module: &Module, path: &[String]) -> Option<(Module, Vec<String>)> {
    let mut at = module.clone();
    let mut rest = path;
    match path.first().map(String::as_str) {
        Some("crate") => (at, rest) = (Vec::new(), &path[1..]),
        Some("self") => rest = &path[1..],
        Some("super") => {
            while rest.first().is_some_and(|first| first == "super") {
                at.pop();
                rest = &rest[1..];
            }
        }
        Some(name) => {
            let child = [module.as_slice(), &[name.to_owned()]].concat();
            if !rooms.contains_key(&child) {
                return None;
            }
        }
        None => return None,
    }
    Some((at, rest.to_vec()))
}

/// The module whose file defines what a path names.
fn resolve(rooms: &HashMap<Module, Room>, mut at: Module, rest: &[String], left: usize) -> Option<Module> {
    let mut rest = rest;
    while let [first, behind @ ..] = rest {
        let child = [at.as_slice(), std::slice::from_ref(first)].concat();
        if !rooms.contains_key(&child) {
            break;
        }
        (at, rest) = (child, behind);
    }
    let room = rooms.get(&at)?;
    let Some(name) = rest.first().filter(|_| left > 0) else { return Some(at) };
    if room.defines.contains(name) || name == "*" {
        return Some(at);
    }
    for (used, path) in &room.uses {
        let glob = used == "*";
        if used != name && !glob {
            continue;
        }
        let mut path = path.clone();
        if glob {
            path.pop();
            path.push(name.clone());
        }
        let Some((from, behind)) = absolute(rooms, &at, &path) else { continue };
        let to = resolve(rooms, from, &behind, left - 1);
        let is_there = |to: &Module| rooms.get(to).is_some_and(|room| room.defines.contains(name));
        if let Some(to) = to.filter(|to| !glob || is_there(to)) {
            return Some(to);
        }
    }
    Some(at)
}

impl Room {
    fn add_use(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.add_use(&path.tree, &with(&path.ident)),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let last = before.last().cloned().unwrap_or_default();
                self.uses.push((last, self.outside(before)));
            }
            syn::UseTree::Name(name) => self.uses.push((name.ident.to_string(), self.outside(&with(&name.ident)))),
            syn::UseTree::Rename(name) => self.uses.push((name.rename.to_string(), self.outside(&with(&name.ident)))),
            syn::UseTree::Glob(_) => {
                let path = [before, &["*".to_owned()]].concat();
                self.uses.push(("*".to_owned(), self.outside(&path)));
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(tree, before)),
        }
    }

    /// A path as the file's own module would write it.
    fn outside(&self, path: &[String]) -> Vec<String> {
        let supers = path.iter().take(self.inline).take_while(|part| *part == "super").count();
        let rest = path[supers..].to_vec();
        if supers > 0 && rest.first().is_some_and(|first| first != "super") {
            return [vec!["self".to_owned()], rest].concat();
        }
        rest
    }
}

impl<'ast> Visit<'ast> for Room {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(item_attrs(item)) {
            return;
        }
        let name = match item {
            syn::Item::Const(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Fn(item) => Some(&item.sig.ident),
            syn::Item::Macro(item) => item.ident.as_ref(),
            syn::Item::Mod(item) => Some(&item.ident).filter(|_| item.content.is_some()),
            syn::Item::Static(item) => Some(&item.ident),
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            syn::Item::Union(item) => Some(&item.ident),
            _ => None,
        };
        self.defines.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.inline += 1;
        visit::visit_item_mod(self, item);
        self.inline -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&item.tree, &[]);
    }

    /// `pub(in crate::a)` says who may see a name; it imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if parts.len() > 1 {
            self.paths.push(self.outside(&parts));
        }
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
        circles(&files).expect("it is Rust").into_iter().map(|circle| circle.files).collect()
    }

    #[test]
    fn a_circle_is_found_through_a_name_that_is_exported_again() {
        let lib = ("shm/src/lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::*;");
        let a = ("shm/src/a.rs", "use crate::B;\npub struct A(B);");
        let b = ("shm/src/b.rs", "pub struct B;\nfn f() { crate::A::new(); }");
        assert_eq!(found(&[lib, a, b]), [["shm/src/a.rs", "shm/src/b.rs"]]);
        assert!(found(&[lib, a, ("shm/src/b.rs", "pub struct B;")]).is_empty());
    }

    #[test]
    fn a_child_that_takes_from_its_parent_is_one_where_the_parent_takes_from_it() {
        let parent = "mod child;\nuse child::C;\nstruct P;\nstruct Q(C);";
        let child = ("shm/src/p/child.rs", "use super::P;\npub struct C(P);");
        assert_eq!(found(&[("shm/src/p/mod.rs", parent), child]).len(), 1);
        assert_eq!(found(&[("shm/src/p.rs", parent), child]).len(), 1);
        assert!(found(&[("shm/src/p.rs", "mod child;\nstruct P;"), child]).is_empty(), "to declare it is no import");
    }

    #[test]
    fn a_lower_layer_that_imports_from_a_higher_one_is_found_also_through_another_name() {
        let lib = ("journal/src/lib.rs", "mod io;\nmod run;\npub use run::R;");
        let io = ("journal/src/io/a.rs", "use crate::R;");
        let run = ("journal/src/run/mod.rs", "use crate::io::a;\npub struct R;");
        let files = [lib, io, run].map(|(path, text)| File::new(path, text));
        let found = upward(&files).expect("it is Rust");
        assert_eq!(
            found,
            [("journal/src/io/a.rs".to_owned(), "journal/src/run/mod.rs".to_owned(), vec!["R".to_owned()])]
        );
    }

    #[test]
    fn tests_have_no_arrows() {
        let a = ("shm/src/a.rs", "use crate::b::B;\npub struct A(B);");
        let b = "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }";
        assert!(found(&[a, ("shm/src/b.rs", b)]).is_empty());
        let inline = "pub struct B;\nmod inner { use super::B; use super::super::a::A; }";
        assert_eq!(found(&[a, ("shm/src/b.rs", inline)]).len(), 1, "an inline module is a part of its file");
    }
}
