"""Node classification with PyTorch Geometric on a generated graph: full batches, evaluation after every step."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

torch.manual_seed(0)
count, classes = 300, 4
labels = torch.randint(0, classes, (count,))
source = torch.randint(0, count, (3000,))
target = torch.randint(0, count, (3000,))
kept = (labels[source] == labels[target]) | (torch.rand(3000) < 0.2)
graph = Data(x=torch.randn(count, 16) + labels[:, None], edge_index=torch.stack([source[kept], target[kept]]), y=labels)
is_train = torch.rand(count) < 0.5


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GCNConv(16, 32)
        self.second = GATConv(32, classes, heads=2, concat=False, dropout=0.3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.second(F.elu(self.first(F.dropout(x, 0.3, self.training), edges)), edges)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(100):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(graph.x, graph.edge_index)[is_train], graph.y[is_train])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(graph.x, graph.edge_index).argmax(-1) == graph.y
    print(f"epoch {epoch} loss: {loss.item():.6f} {right[~is_train].float().mean():.3f}")
