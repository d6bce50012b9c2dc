"""What the pages for people share: style, tables, plots, how they ask and who they ask as (`files`), and how they are
served. The pages themselves belong to the servers whose facts they show."""
